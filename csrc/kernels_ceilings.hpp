// Reading and multiplying as fast as an instruction set can. Included inside the instruction set's own namespace, after its
// vectors; what a file does not use is left out by the compiler.

// Every lane is as needed as the first: lanes are not computed apart.
inline float first_of(Vec v) {
    float lanes[W];
    vstore(lanes, v);
    return lanes[0];
}

constexpr int kChains = W == 16 ? 16 : 12; // independent sums: enough to hide the latency, few enough for the registers

// Both halves at once: hardware that runs ahead of what is read does so for each page by itself, and not far.
inline float read_floats(const char* data, int64_t bytes) {
    constexpr int kVecs = 4; // of each half
    static_assert(kReadStep % (2 * kVecs * W * 4) == 0);
    const auto *low = reinterpret_cast<const float*>(data), *high = low + bytes / 8;
    Vec sums[2 * kVecs];
    for (Vec& sum : sums) sum = vzero();
    for (int64_t i = 0; i < bytes / 8; i += kVecs * W) {
        for (int v = 0; v < kVecs; ++v) {
            sums[v] = vadd(sums[v], vload(low + i + v * W));
            sums[kVecs + v] = vadd(sums[kVecs + v], vload(high + i + v * W));
        }
    }
    for (int v = 1; v < 2 * kVecs; ++v) sums[0] = vadd(sums[0], sums[v]);
    return first_of(sums[0]);
}

inline float multiply_floats(int64_t rounds) {
    Vec sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = vset(static_cast<float>(c));
    const Vec factor = vset(0.9f), rest = vset(0.1f); // towards 1: never a denormal number
    for (int64_t r = 0; r < rounds; ++r) {
        for (Vec& sum : sums) sum = vfma(sum, factor, rest);
    }
    for (int c = 1; c < kChains; ++c) sums[0] = vadd(sums[0], sums[c]);
    return first_of(sums[0]);
}

constexpr VectorCeilings kCeilings{read_floats, {kMultiplyAdd, 2.0 * W * kChains, multiply_floats}};

// Pairs of whole numbers of 16 bits, as bf16 weights are multiplied where there is nothing better.
#ifdef __AVX2__
inline float multiply_whole_pairs(int64_t rounds) {
    volatile int32_t seed = 0x00040003;
    const IntPairs weights = iset(seed), pair = iset(seed);
    Ints sums[kChains];
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sums[c] = izero();
    for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < kChains; ++c) idot(sums[c], weights, pair);
    }
    Vec total = vzero();
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) total = vadd(total, ifloat(sums[c]));
    float first;
    __builtin_memcpy(&first, &total, sizeof first);
    return first;
}

constexpr PeakKernel kPairsPeak{kMultiplyPairs, 4.0 * W * kChains, multiply_whole_pairs};
#endif

#ifdef OCTAVO_DOT_BF16
inline float multiply_bf16_pairs(int64_t rounds) {
    const Vec weights = vset(0.5f); // as pairs of bf16: 0 and 0.5
    Vec sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = vset(static_cast<float>(c));
    for (int64_t r = 0; r < rounds; ++r) {
        for (Vec& sum : sums) sum = vdot(sum, 0x3F003F00, weights);
    }
    for (int c = 1; c < kChains; ++c) sums[0] = vadd(sums[0], sums[c]);
    return first_of(sums[0]);
}

constexpr PeakKernel kDotPeak{"vdpbf16ps zmm", 4.0 * W * kChains, multiply_bf16_pairs};
#endif
