// Dots of bytes as fast as an instruction set can. Included inside the instruction set's own namespace, after its dots.

constexpr int kDotChains = W == 16 ? 12 : 6; // as kChains; the activations want registers too
constexpr int kDotsOfChain = W == 16 ? 1 : 3; // with the same weights: few chains would wait for them

// One vector of weights meets several activations, as in a product of matrices. The weights are a sum's own bits and the
// activations come through memory, so that the compiler can compute nothing ahead.
inline float multiply_bytes(int64_t rounds) {
    volatile int32_t seed = 0x01030207;
    Dots sums[kDotChains];
    Quad8 activations[kDotsOfChain][kDotChains];
    for (int c = 0; c < kDotChains; ++c) {
        sums[c] = dset(0x01020304 + c); // not zero: all would stay zero, and a compiler may know that
        for (int i = 0; i < kDotsOfChain; ++i) activations[i][c] = dquad8(seed ^ (c + i * kDotChains));
    }
    for (int64_t r = 0; r < rounds; ++r) {
        const Eights weights = deights(reinterpret_cast<Bytes>(sums[0]));
#pragma GCC unroll 4
        for (int i = 0; i < kDotsOfChain; ++i) {
#pragma GCC unroll 16
            for (int c = 0; c < kDotChains; ++c) sums[c] = ddot8(sums[c], weights, activations[i][c]);
        }
    }
    int32_t lanes[kDotChains][W];
    __builtin_memcpy(lanes, sums, sizeof lanes);
    int32_t total = 0;
    for (const auto& chain : lanes) total ^= chain[0];
    return static_cast<float>(total);
}

constexpr PeakKernel int8_peak(const char* instruction) { return {instruction, 8.0 * W * kDotChains * kDotsOfChain, multiply_bytes}; }
