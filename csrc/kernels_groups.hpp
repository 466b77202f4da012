// Weights in groups that share a scale as values; see integer.hpp. Included inside the instruction set's own namespace, after
// kernels_math.hpp and simd_integer_*.hpp.

// The values of four inputs with fewer than 8 bits, `half` being their outputs' place in the first line.
template <int kBits> inline __attribute__((always_inline)) Bytes values_of_line(const char* half, int line) {
    const Bytes raw = dload(half + line % 4 * kLine), low = line < 4 ? dlow(raw) : dhigh(raw);
    if constexpr (kBits == 4) return low;
    const Bytes highs = dload(half + (4 + (kBits == 6 ? line / 4 : 0)) * kLine);
    return dor(low, kBits == 5 ? dkeep(dmove(highs, 4 - line), 16) : dkeep(dmove(highs, 4 - line % 4 * 2), 48));
}

// The value of input i of a group, `half` being the four bytes of an output's first line.
inline int value_at(const char* half, int i, int bits) {
    const auto byte = [&](int line) { return static_cast<uint8_t>(half[line * kLine + i % 4]); };
    const int line = i / 4;
    if (bits == 8) return byte(line) - 128;
    const int low = line < 4 ? byte(line) & 15 : byte(line - 4) >> 4;
    if (bits == 4) return low;
    if (bits == 5) return low | (byte(4) >> line & 1) << 4;
    return (low | (byte(4 + line / 4) >> line % 4 * 2 & 3) << 4) - 32;
}

// A column of a block, dequantized: exact but for the last rounding.
inline void read_grouped_column(const char* block, int64_t column, int64_t groups, int bits, float* out) {
    for (int64_t g = 0; g < groups; ++g, block += group_bytes(bits), out += kGroup) {
        const char* half = block + place_of_column(bits, column);
        const char* scales = block + scale_of_column(bits, column);
        const float scale = half_to_float(scales), second = bits == 8 ? 0.0f : half_to_float(scales + 2 * kIntegerColumns);
        for (int i = 0; i < kGroup; ++i) {
            const auto value = static_cast<float>(value_at(half, i, bits));
            if (bits < 6) out[i] = value * scale + second;
            else out[i] = value * (bits == 6 && i >= kGroup / 2 ? second : scale);
        }
    }
}
