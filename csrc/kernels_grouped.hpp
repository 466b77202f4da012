// Products of weights in groups that share a scale (integer.hpp), multiplied as the bf16 numbers that they stand for: the results
// are those of plain weights, bit for bit. Included inside the instruction set's own namespace, after kernels_linear.hpp and
// simd_grouped_*.hpp.

// What four inputs of W columns are made of: the line of step kStep, `half` being the columns' place in the first line.
template <int kBits, int kStep> inline __attribute__((always_inline)) Words words_of_step(const char* half) {
    if constexpr (kBits == 4 || kBits == 8) {
        return spread(dload(half + kStep % kBits * kLine));
    } else {
        return spread(values_of_line<kBits>(half, kStep));
    }
}

template <int kStep> struct Step {
    static constexpr int value = kStep;
};
template <int kStep = 0, class Call> inline __attribute__((always_inline)) void each_step(const Call& call) {
    call(Step<kStep>());
    if constexpr (kStep + 1 < kGroup / 4) each_step<kStep + 1>(call);
}

// Whether the numbers of a step have other scales than those of the step before.
template <int kBits> constexpr bool scales_change(int step) { return step == 0 || (kBits == 6 && step == kGroup / 8); }

// A group's 32 columns as plain weights: a step of a bf16 block.
template <int kBits> inline void dequantize_group(const char* group, uint16_t* to) {
    for (int column = 0; column < kColumnBlock; column += W) {
        const char* half = group + place_of_column(kBits, column);
        const char* given = group + scale_of_column(kBits, column);
        uint16_t* tile = to + column / 16 * kTileElements + column % 16 * 2;
        GroupScales<kBits> scales;
        Words words[kBits == 4 ? 4 : 1]; // with 4 bits both halves of each line
        each_step([&](auto step) __attribute__((always_inline)) {
            constexpr int kStep = decltype(step)::value;
            if constexpr (scales_change<kBits>(kStep)) scales = GroupScales<kBits>(given + kStep / 4 * kIntegerColumns * 2);
            Words& own = words[kBits == 4 ? kStep % 4 : 0];
            if constexpr (kBits != 4 || kStep < 4) own = words_of_step<kBits, kStep>(half);
            Pairs pairs[2];
            unpack<kBits, (kStep >= kBits)>(own, scales, pairs);
            for (int i = 0; i < 2; ++i) store_pairs(tile + kStep * 64 + i * 32, pairs[i]);
        });
    }
}

void embedding_grouped(const EmbeddingArgs& a, int64_t row0, int64_t row1) {
    for (int64_t r = row0; r < row1; ++r) {
        const int64_t n = a.ids[r], block_bytes = a.k / kGroup * group_bytes(a.group_bits);
        float* out = a.out + r * a.k;
        const char* block = static_cast<const char*>(a.table) + n / kColumnBlock * block_bytes;
        read_grouped_column(block, n % kColumnBlock, a.k / kGroup, a.group_bits, out);
        for (int64_t k = 0; k < a.k; ++k) out[k] = from_bf16(to_bf16(out[k]));
    }
}
