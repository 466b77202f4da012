// Products with integer weights and the quantization of activations; see integer.hpp for how both lie in memory.
// Included inside the instruction set's own namespace, after simd_*.hpp, kernels_math.hpp and simd_integer_*.hpp.

inline int64_t tile_row(int64_t rows, int64_t tiles, int64_t tile) { return rows * tile / tiles; }

inline float half_to_float(const char* p) {
    uint16_t half;
    __builtin_memcpy(&half, p, sizeof half);
    const uint32_t magnitude = half & 0x7fffu, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    if (magnitude >= 0x7c00u) bits += 112u << 23;
    float value;
    if (magnitude < 0x400u) { // a subnormal has no hidden bit: give it one and subtract it again
        bits += 1u << 23;
        __builtin_memcpy(&value, &bits, sizeof value);
        value -= 6.103515625e-05f;
        __builtin_memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// To nearest even. Where half precision ends, numbers are compared as bits, and the fraction is shifted out by an addition.
inline uint16_t float_to_half(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    bits &= 0x7FFFFFFFu;
    if (bits > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
    if (bits >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u); // rounds to 2^16 or more
    if (bits < 0x38800000u) {                                              // below 2^-14: steps of 2^-24
        float shifted;
        __builtin_memcpy(&shifted, &bits, sizeof shifted);
        shifted += 0.5f;
        __builtin_memcpy(&bits, &shifted, sizeof bits);
        return static_cast<uint16_t>(sign | (bits - 0x3F000000u));
    }
    bits += 0xFFFu + (bits >> 13 & 1);
    return static_cast<uint16_t>(sign | ((bits >> 13) - (112u << 10)));
}

// The definition is in octavo/backends/base.py, at linear. x: kGroup values.
inline void quantize_group(const float* x, char* record, bool four) {
    constexpr float kRound = 12582912.0f; // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
    uint32_t words[kGroup];
    __builtin_memcpy(words, x, sizeof words);
    uint32_t largest = 0; // magnitudes compare like their bits, and NaN is above all
    for (int i = 0; i < kGroup; ++i) {
        uint32_t magnitude = words[i] & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    float magnitude;
    __builtin_memcpy(&magnitude, &largest, sizeof magnitude);
    int8_t quants[kGroup] = {};
    int32_t sum = 0;
    float scale = 0.0f;
    if (largest >= 0x7F800000u) {
        scale = __builtin_nanf("");
    } else if (magnitude >= 1e-30f) {
        const float inverse = 127.0f / magnitude;
        scale = magnitude / 127.0f;
        for (int i = 0; i < kGroup; ++i) {
            float shifted = x[i] * inverse + kRound;
            int32_t bits;
            __builtin_memcpy(&bits, &shifted, sizeof bits);
            int32_t quant = bits - 0x4B400000;
            sum += quant;
            quants[i] = static_cast<int8_t>(quant);
        }
    }
    __builtin_memcpy(record, quants, sizeof quants);
    __builtin_memcpy(record + kGroup, &scale, sizeof scale);
    const float scaled_sum = scale * static_cast<float>(sum);
    sum *= -128;
    if (four) __builtin_memcpy(record + kGroup + 4, &scaled_sum, sizeof scaled_sum);
    else __builtin_memcpy(record + kGroup + 4, &sum, sizeof sum);
}

void quantize_rows(const QuantizeArgs& a, int64_t tile0, int64_t tile1) {
    const int64_t k = a.groups * kGroup;
    for (int64_t tile = tile0; tile < tile1; ++tile) {
        const int64_t row0 = tile_row(a.rows, a.tiles, tile), size = tile_row(a.rows, a.tiles, tile + 1) - row0;
        for (int64_t r = 0; r < size; ++r) {
            char* record = a.out + (row0 * a.groups + r) * kRecord;
            for (int64_t g = 0; g < a.groups; ++g, record += size * kRecord) {
                const int64_t at = (row0 + r) * k + g * kGroup;
                if (!a.x_bf16) {
                    quantize_group(static_cast<const float*>(a.x) + at, record, a.four);
                    continue;
                }
                float wide[kGroup];
                for (int i = 0; i < kGroup; i += W) vstore(wide + i, vload_bf16(static_cast<const uint16_t*>(a.x) + at + i));
                quantize_group(wide, record, a.four);
            }
        }
    }
}

inline float float_at(const char* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
}
inline int32_t word_at(const char* p) {
    int32_t value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
}

// Adds one group's products of R rows and V vectors of outputs, `w` and `half` (scales) being those of the first vector.
template <int R, int V, bool kFour>
inline __attribute__((always_inline)) void accumulate_group(Vec (&acc)[R][V], const char* x, const char* w, const char* half) {
    constexpr int kLines = kFour ? 4 : 8, kVecs = 16 / W; // vectors of a line
    Dots dots[R][V];
    for (int r = 0; r < R; ++r) {
        Dots start = kFour ? dzero() : dset(word_at(x + r * kRecord + kGroup + 4));
        for (int v = 0; v < V; ++v) dots[r][v] = start;
    }
    for (int line = 0; line < kLines; ++line) {
        Bytes low[V], high[V];
        for (int v = 0; v < V; ++v) {
            Bytes raw = dload(w + (v / kVecs * kLines + line) * kLine + v % kVecs * W * 4);
            low[v] = kFour ? dlow(raw) : raw;
            high[v] = dhigh(raw);
        }
        for (int r = 0; r < R; ++r) {
            Quad quad = dquad(word_at(x + r * kRecord + line * 4));
            for (int v = 0; v < V; ++v) dots[r][v] = kFour ? ddot4(dots[r][v], low[v], quad) : ddot8(dots[r][v], low[v], quad);
        }
        if constexpr (kFour) {
            for (int r = 0; r < R; ++r) {
                Quad quad = dquad(word_at(x + r * kRecord + (line + 4) * 4));
                for (int v = 0; v < V; ++v) dots[r][v] = ddot4(dots[r][v], high[v], quad);
            }
        }
    }
    for (int v = 0; v < V; ++v) {
        const Vec scale = vload_half(half + v * W * 2);
        const Vec minimum = kFour ? vload_half(half + (kIntegerColumns + v * W) * 2) : vzero();
        for (int r = 0; r < R; ++r) {
            acc[r][v] = vfma(vmul(dfloat(dots[r][v]), scale), vset(float_at(x + r * kRecord + kGroup)), acc[r][v]);
            if (kFour) acc[r][v] = vfma(minimum, vset(float_at(x + r * kRecord + kGroup + 4)), acc[r][v]);
        }
    }
}

inline void store_integer(const IntegerLinearArgs& a, int64_t row, int64_t column, Vec v) {
    int64_t part = min64(W, a.n - column);
    if (part <= 0) return;
    if (a.bias) v = vadd(v, vload_part(a.bias + column, part));
    if (a.residual) v = vadd(v, vload_part(a.residual + row * a.n + column, part));
    vstore_as(a.out, row * a.n + column, v, part, false);
}

template <int R, bool kFour> __attribute__((noinline)) void integer_tile(const IntegerLinearArgs& a, int64_t row, int64_t block) {
    constexpr int V = kIntegerVecs, kLines = kFour ? 4 : 8;
    constexpr int64_t kBytes = kFour ? kGroupBytes4 : kGroupBytes8;
    const char* weights = a.weight + block * a.groups * kBytes;
    for (int column = 0; column < kIntegerColumns; column += V * W) {
        const char* x = a.x + row * a.groups * kRecord;
        const char* w = weights;
        const int64_t at = column / 16 * kLines * kLine + column % 16 * 4, half = 2 * kLines * kLine + column * 2;
        Vec acc[R][V];
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) acc[r][v] = vzero();
        }
        for (int64_t g = 0; g < a.groups; ++g, w += kBytes, x += R * kRecord) {
            if (column == 0) {
                for (int64_t line = 0; line < kBytes; line += kLine) __builtin_prefetch(w + kIntegerPrefetch * kBytes + line);
            }
            accumulate_group<R, V, kFour>(acc, x, w + at, w + half);
        }
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) store_integer(a, row + r, block * kIntegerColumns + column + v * W, acc[r][v]);
        }
    }
}

typedef void (*IntegerTile)(const IntegerLinearArgs&, int64_t row, int64_t block);

struct IntegerTiles {
    IntegerTile four[kIntegerRows + 1]{}, eight[kIntegerRows + 1]{};
    template <int R> constexpr void fill() {
        if constexpr (R > 0) {
            four[R] = integer_tile<R, true>;
            eight[R] = integer_tile<R, false>;
            fill<R - 1>();
        }
    }
    constexpr IntegerTiles() { fill<kIntegerRows>(); }
};

constexpr IntegerTiles kIntegerTiles;

void linear_integer(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block0, int64_t block1) {
    const IntegerTile* kernels = a.four ? kIntegerTiles.four : kIntegerTiles.eight;
    for (int64_t block = block0; block < block1; ++block) {
        for (int64_t tile = tile0; tile < tile1; ++tile) {
            const int64_t row = tile_row(a.rows, a.tiles, tile);
            kernels[tile_row(a.rows, a.tiles, tile + 1) - row](a, row, block);
        }
    }
}

void embedding_integer(const IntegerEmbeddingArgs& a, int64_t row0, int64_t row1) {
    const int64_t bytes = a.four ? kGroupBytes4 : kGroupBytes8, lines = a.four ? 4 : 8;
    for (int64_t r = row0; r < row1; ++r) {
        const int64_t n = a.ids[r], column = n % kIntegerColumns;
        const char* group = a.table + n / kIntegerColumns * a.groups * bytes;
        float* out = a.out + r * a.groups * kGroup;
        for (int64_t g = 0; g < a.groups; ++g, group += bytes, out += kGroup) {
            const char* values = group + column / 16 * lines * kLine + column % 16 * 4;
            const char* half = group + 2 * lines * kLine + column * 2;
            const float scale = half_to_float(half), minimum = a.four ? half_to_float(half + 2 * kIntegerColumns) : 0.0f;
            for (int i = 0; i < kGroup; ++i) {
                const uint8_t byte = static_cast<uint8_t>(values[i / 4 % lines * kLine + i % 4]);
                if (a.four) out[i] = static_cast<float>(i < kGroup / 2 ? byte & 15 : byte >> 4) * scale + minimum;
                else out[i] = static_cast<float>(byte - 128) * scale;
            }
        }
    }
}
