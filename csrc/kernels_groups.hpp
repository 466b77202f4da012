// Reading weights in groups that share a scale one by one; see integer.hpp. Included inside the instruction set's own namespace,
// after kernels_math.hpp.

// A column of a block, dequantized: exact but for the last rounding.
inline void read_grouped_column(const char* block, int64_t column, int64_t groups, bool four, float* out) {
    const int64_t bytes = four ? kGroupBytes4 : kGroupBytes8, lines = four ? 4 : 8;
    for (int64_t g = 0; g < groups; ++g, block += bytes, out += kGroup) {
        const char* values = block + column / 16 * lines * kLine + column % 16 * 4;
        const char* half = block + 2 * lines * kLine + column * 2;
        const float scale = half_to_float(half), minimum = four ? half_to_float(half + 2 * kIntegerColumns) : 0.0f;
        for (int i = 0; i < kGroup; ++i) {
            const uint8_t byte = static_cast<uint8_t>(values[i / 4 % lines * kLine + i % 4]);
            if (four) out[i] = static_cast<float>(i < kGroup / 2 ? byte & 15 : byte >> 4) * scale + minimum;
            else out[i] = static_cast<float>(byte - 128) * scale;
        }
    }
}
