// Products of weights in groups that share a scale (integer.hpp), multiplied as the bf16 numbers that they stand for: the results
// are those of plain weights, bit for bit. Included inside the instruction set's own namespace, after kernels_linear.hpp and
// simd_grouped_*.hpp.

template <bool kFour> constexpr int64_t kBytesOfGroup = kFour ? kGroupBytes4 : kGroupBytes8;

template <bool kFour> constexpr int kLinesOfHalf = kFour ? 4 : 8; // of a group: 16 of its columns

// A group's 32 columns as plain weights: a step of a bf16 block.
template <bool kFour> inline void dequantize_group(const char* group, uint16_t* to) {
    constexpr int kLines = kLinesOfHalf<kFour>;
    for (int column = 0; column < kColumnBlock; column += W) {
        const GroupScales<kFour> scales(group + 2 * kLines * kLine + column * 2);
        const char* lines = group + column / 16 * kLines * kLine + column % 16 * 4;
        uint16_t* tile = to + column / 16 * kTileElements + column % 16 * 2;
#pragma GCC unroll 8
        for (int line = 0; line < kLines; ++line) {
            const Words words = load_words(lines + line * kLine);
            Pairs pairs[2];
            unpack<kFour, false>(words, scales, pairs);
            for (int i = 0; i < 2; ++i) store_pairs(tile + line * 64 + i * 32, pairs[i]);
            if constexpr (!kFour) continue;
            unpack<kFour, true>(words, scales, pairs);
            for (int i = 0; i < 2; ++i) store_pairs(tile + kTileElements / 2 + line * 64 + i * 32, pairs[i]);
        }
    }
}

void embedding_grouped(const EmbeddingArgs& a, int64_t row0, int64_t row1) {
    const bool four = a.group_bits == 4;
    for (int64_t r = row0; r < row1; ++r) {
        const int64_t n = a.ids[r], block_bytes = a.k / kGroup * (four ? kGroupBytes4 : kGroupBytes8);
        float* out = a.out + r * a.k;
        const char* block = static_cast<const char*>(a.table) + n / kColumnBlock * block_bytes;
        read_grouped_column(block, n % kColumnBlock, a.k / kGroup, four, out);
        for (int64_t k = 0; k < a.k; ++k) out[k] = from_bf16(to_bf16(out[k]));
    }
}
