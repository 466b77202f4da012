// Dots of bytes as fast as an instruction set can. Included inside the instruction set's own namespace, after its dots.

// Chains of sums: more than a dot takes cycles, twice, and few enough for the registers. Where a dot is one instruction, activations
// may come again; elsewhere a compiler would find their products there already.
#ifdef OCTAVO_VNNI
constexpr int kDotChains = W == 16 ? 16 : 10, kDotsOfChain = 1, kActivations = 3;
#else
constexpr int kDotChains = W == 16 ? 12 : 6, kDotsOfChain = W == 16 ? 1 : 3, kActivations = kDotChains * kDotsOfChain;
#endif

// One vector of weights meets several activations, as in a product of matrices. The weights are a sum's own bits and the
// activations come through memory, so that the compiler can compute nothing ahead.
inline float multiply_bytes(int64_t rounds) {
    volatile int32_t seed = 0x01030207;
    Dots sums[kDotChains];
    Quad8 activations[kActivations];
    for (int i = 0; i < kActivations; ++i) activations[i] = dquad8(seed ^ i);
    for (int c = 0; c < kDotChains; ++c) sums[c] = dset(0x01020304 + c); // not zero: all would stay zero, and a compiler may know that
    Bytes bits = reinterpret_cast<Bytes>(sums[0]);
    for (int64_t r = 0; r < rounds; ++r) {
        const Eights weights = deights(bits);
        bits = reinterpret_cast<Bytes>(sums[0]); // of the round before, for the next one: nobody waits for this round's
#pragma GCC unroll 4
        for (int i = 0; i < kDotsOfChain; ++i) {
#pragma GCC unroll 16
            for (int c = 0; c < kDotChains; ++c) sums[c] = ddot8(sums[c], weights, activations[(i * kDotChains + c) % kActivations]);
        }
    }
    int32_t lanes[kDotChains][W];
    __builtin_memcpy(lanes, sums, sizeof lanes);
    int32_t total = 0;
    for (const auto& chain : lanes) total ^= chain[0];
    return static_cast<float>(total);
}

constexpr PeakKernel int8_peak(const char* instruction) { return {instruction, 8.0 * W * kDotChains * kDotsOfChain, multiply_bytes}; }
