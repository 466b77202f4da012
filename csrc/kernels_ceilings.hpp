// Reading and multiplying as fast as an instruction set can. Included inside the instruction set's own namespace, after its
// vectors; what a file does not use is left out by the compiler.

constexpr int kChains = W == 16 ? 16 : 12; // independent sums: enough to hide the latency, few enough for the registers

inline float read_floats(const char* data, int64_t bytes) {
    constexpr int kStreams = 8;
    static_assert(kReadStep % (kStreams * W * 4) == 0);
    const auto* x = reinterpret_cast<const float*>(data);
    Vec sums[kStreams];
    for (Vec& sum : sums) sum = vzero();
    for (int64_t i = 0; i < bytes / 4; i += kStreams * W) {
        for (int s = 0; s < kStreams; ++s) sums[s] = vadd(sums[s], vload(x + i + s * W));
    }
    for (int s = 1; s < kStreams; ++s) sums[0] = vadd(sums[0], sums[s]);
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

constexpr VectorCeilings vector_ceilings(const char* instruction) {
    return {read_floats, {instruction, 2.0 * W * kChains, multiply_floats}};
}
