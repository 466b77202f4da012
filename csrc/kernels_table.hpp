// Collects the kernels of one instruction set. Included last, inside the instruction set's own namespace.

constexpr int64_t kRowsOfChunk = 192, kRowsOfPart = 32;

constexpr KernelTable make_table(const char* isa, Activation activation) {
    return {isa,           activation,   kRowsOfChunk, kRowsOfPart, linear_bf16, linear_f32, pack,   expand_bf16,
            embedding,     rms_norm,     head_norm,   rotary,     silu_and_mul, silu_and_mul_block,
            write_kv,      attention_scratch, attention_state, attention, attention_merge, argmax, masked_argmax, best_of_block, promise_of_block, shares, block_maxima, reached, places, keep};
}
