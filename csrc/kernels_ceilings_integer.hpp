// Dots of bytes as fast as an instruction set can. Included inside the instruction set's own namespace, after its dots.

// As in a product of matrices each of some weights meets each of some activations; their dots hide each other's latency.
constexpr int kWeights = W == 16 ? 3 : 1, kActivations = W == 16 ? 5 : 6, kSteps = 4;

// Weights come through memory that a compiler knows nothing of, so that it can compute nothing ahead.
inline float multiply_bytes(int64_t rounds) {
    volatile int32_t seed = 0x01030207;
    Dots sums[kWeights][kActivations];
    Quad8 activations[kActivations];
    alignas(64) char weights[kSteps * kWeights * sizeof(Bytes)];
    __builtin_memset(weights, seed, sizeof weights);
#pragma GCC unroll 16
    for (int a = 0; a < kActivations; ++a) {
        activations[a] = dquad8(seed ^ a);
#pragma GCC unroll 16
        for (int w = 0; w < kWeights; ++w) sums[w][a] = dzero();
    }
    for (int64_t r = 0; r < rounds; ++r) {
        const char* at = weights;
        __asm__ volatile("" : "+r"(at));
#pragma GCC unroll 16
        for (int i = 0; i < kSteps * kWeights; ++i) {
            const Eights now = deights(dload(at + i * sizeof(Bytes)));
#pragma GCC unroll 16
            for (int a = 0; a < kActivations; ++a) sums[i % kWeights][a] = ddot8(sums[i % kWeights][a], now, activations[a]);
        }
    }
    Dots total = dzero();
#pragma GCC unroll 16
    for (int i = 0; i < kWeights * kActivations; ++i) total = dadd(total, sums[i / kActivations][i % kActivations]);
    int32_t first;
    __builtin_memcpy(&first, &total, sizeof first);
    return static_cast<float>(first);
}

constexpr PeakKernel kInt8Peak{kMultiplyBytes, 8.0 * W * kSteps * kWeights * kActivations, multiply_bytes};
