// Products with integer weights and the quantization of activations; see integer.hpp for how both lie in memory.
// Included inside the instruction set's own namespace, after simd_*.hpp, kernels_math.hpp and simd_integer_*.hpp.

constexpr int64_t kGroupsAtOnce = 64;

// Dots that began at these bits are, read as a float, what they are plus kBias: so a product with a scale needs no conversion
// before it. Exact for dots below 2^22, if products are not rounded before something is added to them.
constexpr int32_t kBiasBits = 0x4B400000;
constexpr float kBias = 12582912.0f; // 1.5 * 2^23
constexpr bool biased(int bits, int levels) { return kFused && levels == 1 && bits != 6; }
constexpr int32_t bias_of(int bits, int levels) { return biased(bits, levels) ? kBiasBits : 0; }

// Of so many bits and levels, dots times a scale, rounded once; below: of the scale, from scale_below. A zero is positive.
template <int kBits, int kLevels> inline Vec scale_below(Vec scale) {
    return biased(kBits, kLevels) ? vmul(scale, vset(-kBias)) : vzero(); // exact: a scale has 11 bits
}
template <int kBits, int kLevels> inline __attribute__((always_inline)) Vec dscaled(Dots dots, Vec scale, Vec below) {
    if constexpr (biased(kBits, kLevels)) return vfma(dbits(dots), scale, below);
    else return vfma(dfloat(dots), scale, below);
}

template <bool kBf16> inline void load_group(const void* x, int64_t at, Vec (&to)[kGroup / W]) {
    for (int v = 0; v < kGroup / W; ++v) {
        if constexpr (kBf16) to[v] = vload_bf16(static_cast<const uint16_t*>(x) + at + v * W);
        else to[v] = vload(static_cast<const float*>(x) + at + v * W);
    }
}

// Values 255 * high + low of x, which is at most largest_value(2): their bytes, and their sums.
inline HalfSums dround_levels(const Vec (&x)[kGroup / W], char* highs, char* lows) {
    Vec high[kGroup / W], low[kGroup / W];
    for (int v = 0; v < kGroup / W; ++v) {
        const Vec whole = vround(x[v]);
        high[v] = vround(vmul(whole, vset(1.0f / 255))); // never between two, as 255 is odd
        low[v] = vsub(whole, vmul(high[v], vset(255.0f)));
    }
    const HalfSums above = dround_bytes(high, highs), below = dround_bytes(low, lows);
    return {255 * above.first + below.first, 255 * above.second + below.second};
}

// The bits of a group's largest magnitude: they compare like magnitudes, and NaN is above all.
template <bool kBf16> inline uint32_t largest_of_group(const void* x, int64_t at) {
    if constexpr (kBf16) return dlargest(static_cast<const uint16_t*>(x) + at);
    Vec values[kGroup / W];
    load_group<kBf16>(x, at, values);
    return dlargest(values);
}

// Up to kGroupsAtOnce groups, from element `at` on. The definition is in octavo/backends/base.py, at linear. A group's scale and
// then its numbers are one long chain; a processor cannot look far enough ahead to overlap many, so all scales come first.
template <bool kBf16, int kLevels>
inline void quantize_groups_at(const QuantizeArgs& a, int64_t at, int64_t groups, char* record, int64_t stride) {
    static_assert(kGroupsAtOnce % W == 0 && kGroupsAtOnce >= kGroupsWithSpans);
    const int64_t low = record_bytes(a.bits, 1);
    const Vec most = vset(largest_value(kLevels)), infinity = vset(__builtin_inff());
    uint32_t largest[kGroupsAtOnce];
    float inverse[kGroupsAtOnce], scale[kGroupsAtOnce];
    for (int64_t g = 0; g < groups; ++g) {
        __builtin_prefetch(record + g * stride, 1); // others read these records before: it takes a while to make them one's own
        __builtin_prefetch(record + g * stride + kLevels * kGroup + 7, 1);
        largest[g] = largest_of_group<kBf16>(a.x, at + g * kGroup);
    }
    for (int64_t g = groups; g % W != 0; ++g) largest[g] = 0;
    if (a.ends) share_largest(largest, groups, a.ends);
    for (int64_t g = 0; g < groups; g += W) {
        Vec magnitude;
        __builtin_memcpy(&magnitude, largest + g, sizeof magnitude);
        const Vec least = vset(1e-30f);
        // Below the least a scale is 0, and it is NaN where a value is not finite.
        const Vec inverses = vselect_ge(magnitude, least, vdiv(most, magnitude), vzero());
        const Vec scales = vselect_ge(magnitude, least, vdiv(magnitude, most), vzero());
        vstore(inverse + g, vselect_ge(magnitude, infinity, vzero(), inverses));
        vstore(scale + g, vselect_ge(vset(3.4028235e38f), magnitude, scales, vset(__builtin_nanf(""))));
    }
    int32_t before = 0; // sums of the groups of this span
    for (int64_t g = 0; g < groups; ++g, record += stride) {
        HalfSums sums{0, 0};
        if (inverse[g] == 0.0f) {
            __builtin_memset(record, 0, kGroup);
            if (kLevels == 2) __builtin_memset(record + low, 0, kGroup);
        } else {
            Vec x[kGroup / W];
            load_group<kBf16>(a.x, at + g * kGroup, x);
            for (Vec& v : x) v = vmul(v, vset(inverse[g]));
            if constexpr (kLevels == 2) sums = dround_levels(x, record, record + low);
            else sums = dround_bytes(x, record);
        }
        __builtin_memcpy(record + kGroup, &scale[g], sizeof(float));
        const float scaled = scale[g] * static_cast<float>(sums.first + sums.second);
        before += sums.first + sums.second;
        const int32_t all = -128 * before + (a.ends ? 0 : bias_of(8, kLevels)), halves[2] = {-32 * sums.first, -32 * sums.second};
        if (a.bits < 6) __builtin_memcpy(record + kGroup + 4, &scaled, sizeof scaled);
        else if (a.bits == 6) __builtin_memcpy(record + kGroup + 4, halves, sizeof halves);
        else __builtin_memcpy(record + kGroup + 4, &all, sizeof all);
        if (ends_span(a.ends, g)) before = 0;
    }
}

// Row `row`; the records of its groups are `stride` bytes apart.
template <bool kBf16, int kLevels> void quantize_row(const QuantizeArgs& a, int64_t row, char* record, int64_t stride) {
    for (int64_t g = 0; g < a.groups; g += kGroupsAtOnce) {
        const int64_t groups = min64(kGroupsAtOnce, a.groups - g);
        quantize_groups_at<kBf16, kLevels>(a, (row * a.groups + g) * kGroup, groups, record + g * stride, stride);
    }
}

void quantize_rows(const QuantizeArgs& a, int64_t tile0, int64_t tile1) {
    const int64_t bytes = record_bytes(a.bits, a.levels);
    const auto one_level = a.x_bf16 ? quantize_row<true, 1> : quantize_row<false, 1>;
    const auto two_levels = a.x_bf16 ? quantize_row<true, 2> : quantize_row<false, 2>;
    const auto quantize = a.levels == 2 ? two_levels : one_level;
    const EvenTiles rows(a.rows, a.tiles);
    for (int64_t tile = tile0; tile < tile1; ++tile) {
        const int64_t row0 = rows.begin(tile), size = rows.rows(tile);
        for (int64_t r = 0; r < size; ++r) {
            quantize(a, row0 + r, a.out + (row0 * a.groups + r) * bytes, size * bytes);
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

// What a record says beside its bytes.
inline float scale_at(const char* record) { return float_at(record + kGroup); }
inline float scaled_sum_at(const char* record) { return float_at(record + kGroup + 4); }
inline int32_t offset_of_all(const char* record) { return word_at(record + kGroup + 4); }
inline int32_t offset_of_half(const char* record, int half) { return word_at(record + kGroup + 4 + 4 * half); }

inline float length_of(Vec squares) { return __builtin_sqrtf(vsum(squares)) * kLengthTimes + kLengthMore; }

template <bool kBf16, int kLevels>
inline void measure_row(const QuantizeArgs& a, const float* times, int64_t row, const char* record, int64_t stride, float& length, float& change) {
    const auto bytes = [](const char* at, int v) { return vload_int8(reinterpret_cast<const int8_t*>(at) + v * W); };
    const int64_t low = record_bytes(a.bits, 1);
    Vec all = vzero(), changed = vzero();
    for (int64_t g = 0; g < a.groups; ++g, record += stride, times += kGroup) {
        const Vec scale = vset(scale_at(record));
        Vec x[kGroup / W];
        load_group<kBf16>(a.x, (row * a.groups + g) * kGroup, x);
        for (int v = 0; v < kGroup / W; ++v) {
            Vec value = bytes(record, v);
            if constexpr (kLevels == 2) value = vadd(vmul(value, vset(255.0f)), bytes(record + low, v)); // exact
            const Vec factor = vload(times + v * W), part = vmul(x[v], factor), off = vmul(vsub(x[v], vmul(value, scale)), factor);
            all = vfma(part, part, all);
            changed = vfma(off, off, changed);
        }
    }
    length = length_of(all);
    change = length_of(changed);
}

void measure_rows(const QuantizeArgs& a, const float* times, float* lengths, float* changes, int64_t tile0, int64_t tile1) {
    const int64_t bytes = record_bytes(a.bits, a.levels);
    const auto one_level = a.x_bf16 ? measure_row<true, 1> : measure_row<false, 1>;
    const auto two_levels = a.x_bf16 ? measure_row<true, 2> : measure_row<false, 2>;
    const auto measure = a.levels == 2 ? two_levels : one_level;
    const EvenTiles rows(a.rows, a.tiles);
    for (int64_t tile = tile0; tile < tile1; ++tile) {
        const int64_t row0 = rows.begin(tile), size = rows.rows(tile);
        for (int64_t row = row0; row < row0 + size; ++row) {
            measure(a, times, row, a.out + (row0 * a.groups + row - row0) * bytes, size * bytes, lengths[row], changes[row]);
        }
    }
}

// Loops over rows and vectors are unrolled by word: a compiler that leaves one of them a loop keeps all sums in memory.

// A place that no compiler knows, so that it does not keep what it has loaded there before: registers hold no more.
inline __attribute__((always_inline)) const char* anew(const char* p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

// A group's weights of less than 8 bits as bytes: eight lines of each half of a block.
constexpr int64_t kGroupLines = 2 * 8 * kLine; // bytes of a group's weights, one each

template <int kBits> void unpack_lines(const char* w, char* lines) {
    constexpr int kStep = static_cast<int>(sizeof(Bytes));
    for (int half = 0; half < 2; ++half, w += kBits * kLine, lines += 8 * kLine) {
        for (int at = 0; at < kLine; at += kStep) {
#pragma GCC unroll 16
            for (int line = 0; line < 8; ++line) {
                const Bytes values = values_of_line<kBits>(w + at, line);
                __builtin_memcpy(lines + line * kLine + at, &values, sizeof values);
            }
        }
    }
}

// Bits of a weight as a tile reads it.
template <int kBits, bool kUnpacked> constexpr int kBitsRead = kUnpacked ? 8 : kBits;

// A whole group unpacked: its lines, then as floats its scales, what else there is for each output, and scale_below of the scales.
constexpr int kPerOutput = 3;
constexpr int64_t kGroupUnpacked = kGroupLines + kPerOutput * kIntegerColumns * 4;

template <bool kUnpacked> inline __attribute__((always_inline)) Vec load_scale(const char* scales, int64_t at) {
    if constexpr (kUnpacked) return vload(reinterpret_cast<const float*>(scales) + at);
    else return vload_half(scales + at * 2);
}

template <int kBits> void unpack_group(const char* w, char* to) {
    unpack_lines<kBits>(w, to);
    const char* scales = w + scale_of_column(kBits, 0);
    float* floats = reinterpret_cast<float*>(to + kGroupLines);
    for (int column = 0; column < kIntegerColumns; column += W) {
        const Vec scale = vload_half(scales + column * 2);
        vstore(floats + column, scale);
        vstore(floats + kIntegerColumns + column, vload_half(scales + (kIntegerColumns + column) * 2));
        vstore(floats + 2 * kIntegerColumns + column, scale_below<kBits, 1>(scale));
    }
}

// Where the bytes of a row are: rows are `kStride` bytes apart, or if kLow is not 0 two by two, that far from each other.
template <int kStride, int kLow> constexpr int row_place(int r) { return kLow ? r / 2 * kStride + r % 2 * kLow : r * kStride; }

// The exact dots of a group's bytes at x, for R rows as above and V vectors of outputs, `w` being those of the first vector. They are
// added to those that are given.
template <int kStride, int kLow, bool kUnpacked, int R, int V>
inline __attribute__((always_inline)) void dot_bytes4(Dots (&dots)[R][V], const char* x, const char* w) {
    constexpr int kLines = 4;
    Fours sums[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sums[r][v] = dstart4(dots[r][v]);
    }
#pragma GCC unroll 16
    for (int line = 0; line < kLines; ++line) {
        Bytes low[V], high[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            const char* at = w + place_of_column(kBitsRead<4, kUnpacked>, v * W) + line * kLine;
            const Bytes raw = dload(at);
            low[v] = kUnpacked ? raw : dlow(raw);
            high[v] = kUnpacked ? dload(at + kLines * kLine) : dhigh(raw);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Quad quad = dquad4(word_at(x + row_place<kStride, kLow>(r) + line * 4));
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sums[r][v] = ddot4(sums[r][v], low[v], quad);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Quad quad = dquad4(word_at(x + row_place<kStride, kLow>(r) + (line + kLines) * 4));
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) sums[r][v] = ddot4(sums[r][v], high[v], quad);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) dots[r][v] = dend4(dots[r][v], sums[r][v]);
    }
}

template <int kStride, int kLow, int R, int V> inline __attribute__((always_inline)) void dot_bytes8(Dots (&dots)[R][V], const char* x, const char* w) {
    constexpr int kLines = 8;
#pragma GCC unroll 16
    for (int line = 0; line < kLines; ++line) {
        Eights weights[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            weights[v] = deights(dload(w + place_of_column(kLines, v * W) + line * kLine));
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Quad8 quad = dquad8(word_at(x + row_place<kStride, kLow>(r) + line * 4));
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = ddot8(dots[r][v], weights[v], quad);
        }
    }
}

// The same for one half of a group's inputs, with 5 or 6 bits.
template <int kStride, int kLow, int kBits, int kHalf, bool kUnpacked, int R, int V>
inline __attribute__((always_inline)) void dot_half(Dots (&dots)[R][V], const char* x, const char* w) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
        constexpr int kFirst = 4 * kHalf;
        Eights weights[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            const char* half = w + place_of_column(kBitsRead<kBits, kUnpacked>, v * W);
            if constexpr (kUnpacked) weights[v] = dsmall(dload(half + (kFirst + i) * kLine));
            else weights[v] = dsmall(values_of_line<kBits>(half, kFirst + i));
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Quad8 quad = dquad8(word_at(x + row_place<kStride, kLow>(r) + (kFirst + i) * 4));
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = ddot8(dots[r][v], weights[v], quad);
        }
    }
}

// Of the rows' second levels, how far from the first: kLow.
template <int kBytes> struct Apart {
    static constexpr int kLow = kBytes;
};

// The exact dots of a group's values, and an offset(row): those of their bytes, which bytes(dots, x, w, apart) adds; of both levels at
// once where registers hold as many dots, else one after the other.
template <int kBits, int kLevels, int R, int V, class Offset, class Call>
inline __attribute__((always_inline)) void dot_levels(Dots (&dots)[R][V], const char* x, const char* w, const Offset& offset,
                                                      const Call& bytes) {
    if constexpr (kLevels == 2 && R * V <= kDotsOfLevels) {
        Dots both[2 * R][V];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                both[2 * r][v] = dzero();
                both[2 * r + 1][v] = offset(r);
            }
        }
        bytes(both, x, w, Apart<record_bytes(kBits, 1)>());
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = dadd(dtimes255(both[2 * r][v]), both[2 * r + 1][v]);
        }
        return;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Dots start = kLevels == 1 ? offset(r) : dzero();
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) dots[r][v] = start;
    }
    bytes(dots, x, w, Apart<0>());
    if constexpr (kLevels == 2) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Dots own = offset(r);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = dadd(dtimes255(dots[r][v]), own);
        }
        bytes(dots, x + record_bytes(kBits, 1), anew(w), Apart<0>());
    }
}

// What a tile of R rows and V vectors of outputs adds up, from pass to pass in memory: [row][output of the block]. A tile that is alone
// may have so many rows that the dots of a group take most registers: then the sums of most rows stay in memory.
template <int R, int V> struct Sums {
    static constexpr int kKept = R > kIntegerRows ? kRowsAlone - R : R; // rows whose sums are in registers
    Vec of[kKept > 0 ? kKept : 1][V];
    float* at;

    inline __attribute__((always_inline)) void begin(float* before, bool first) {
        at = before;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                if (r < kKept) of[r][v] = first ? vzero() : vload(place(r, v));
                else if (first) vstore(place(r, v), vzero());
            }
        }
    }
    inline __attribute__((always_inline)) Vec get(int r, int v) const {
        // Else a compiler loads more of them than there are registers, and has to put them away.
        if constexpr (kKept < R) __asm__ volatile("" : : : "memory");
        return r < kKept ? of[r][v] : vload(place(r, v));
    }
    inline __attribute__((always_inline)) void put(int r, int v, Vec sum) {
        if (r < kKept) of[r][v] = sum;
        else vstore(place(r, v), sum);
    }
    inline __attribute__((always_inline)) void keep() const {
#pragma GCC unroll 16
        for (int r = 0; r < kKept; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) vstore(place(r, v), of[r][v]);
        }
    }
    template <class Args> inline __attribute__((always_inline)) void store(const Args& a, int64_t row, const int64_t (&columns)[V]) const {
        if constexpr (kKept == R) return store_tile(a, row, columns, of);
        keep();
        for (int r = 0; r < R; ++r) {
            Vec sums[1][V];
            for (int v = 0; v < V; ++v) sums[0][v] = vload(place(r, v));
            store_tile(a, row + r, columns, sums);
        }
    }

private:
    float* place(int r, int v) const { return at + r * kIntegerColumns + v * W; }
};

// One group's products with 6 bits, of N vectors of outputs from `first` on: what both halves give, and then the activations'
// scale. At a place that no compiler knows, so that it does not keep what it has loaded for other vectors.
template <int R, int N, int kLevels, bool kUnpacked, class Acc>
inline __attribute__((always_inline)) void accumulate_group6(Acc& acc, int first, const char* x, const char* w, const char* scales) {
    constexpr int kStride = record_bytes(6, kLevels);
    x = anew(x);
    Dots dots[R][N];
    Vec products[R][N];
    w += place_of_column(kBitsRead<6, kUnpacked>, first * W);
    const auto offset = [&](int half) {
        return [=](int r) __attribute__((always_inline)) { return dset(offset_of_half(x + r * kStride, half)); };
    };
    dot_levels<6, kLevels>(dots, x, w, offset(0), [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
        dot_half<kStride, apart.kLow, 6, 0, kUnpacked>(to, from, with);
    });
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
        const Vec scale = load_scale<kUnpacked>(scales, (first + v) * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) products[r][v] = vmul(dfloat(dots[r][v]), scale);
    }
    dot_levels<6, kLevels>(dots, x, w, offset(1), [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
        dot_half<kStride, apart.kLow, 6, 1, kUnpacked>(to, from, with);
    });
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
        const Vec scale = load_scale<kUnpacked>(scales, kIntegerColumns + (first + v) * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            products[r][v] = vfma(dfloat(dots[r][v]), scale, products[r][v]);
            acc.put(r, first + v, vfma(products[r][v], vset(scale_at(x + r * kStride)), acc.get(r, first + v)));
        }
    }
}

// Adds one group's products of R rows and V vectors of outputs, `w` and `scales` being those of the first vector.
template <int R, int V, int kBits, int kLevels, bool kUnpacked = false, class Acc>
inline __attribute__((always_inline)) void accumulate_group(Acc& acc, const char* x, const char* w, const char* scales) {
    if constexpr (R == 1 && V > 1 && kBits != 4) { // in the order of memory: what reads ahead in hardware follows that
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            Sums<1, 1> own;
            own.of[0][0] = acc.get(0, v);
            accumulate_group<1, 1, kBits, kLevels>(own, x, w + place_of_column(kBits, v * W), scales + v * W * 2);
            acc.put(0, v, own.get(0, 0));
        }
        return;
    }
    if constexpr (kBits == 6) {
        constexpr int kTogether = R * V <= 8 ? V : 1; // registers hold no more
#pragma GCC unroll 16
        for (int v = 0; v < V; v += kTogether) accumulate_group6<R, kTogether, kLevels, kUnpacked>(acc, v, x, w, scales);
        return;
    }
    constexpr int kStride = record_bytes(kBits, kLevels);
    constexpr int32_t kStart = bias_of(kBits, kLevels);
    const auto none = [](int) __attribute__((always_inline)) { return dset(kStart); };
    Dots dots[R][V];
    if constexpr (kBits == 4) {
        dot_levels<4, kLevels>(dots, x, w, none, [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
            dot_bytes4<kStride, apart.kLow, kUnpacked>(to, from, with);
        });
    } else if constexpr (kBits == 8) {
        const auto all = [=](int r) __attribute__((always_inline)) { return dset(kShifted ? offset_of_all(x + r * kStride) : kStart); };
        dot_levels<8, kLevels>(dots, x, w, all, [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
            dot_bytes8<kStride, apart.kLow>(to, from, with);
        });
    } else {
        dot_levels<5, kLevels>(dots, x, w, none, [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
            dot_half<kStride, apart.kLow, 5, 0, false>(to, from, with);
            dot_half<kStride, apart.kLow, 5, 1, false>(to, from, with);
        });
    }
    constexpr bool kMinimums = kBits != 8;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        const Vec scale = load_scale<kUnpacked>(scales, v * W);
        const Vec minimum = kMinimums ? load_scale<kUnpacked>(scales, kIntegerColumns + v * W) : vzero();
        const Vec below = kUnpacked && biased(kBits, kLevels) ? load_scale<kUnpacked>(scales, 2 * kIntegerColumns + v * W)
                                                             : scale_below<kBits, kLevels>(scale);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec before = acc.get(r, v);
            const Vec sum = vfma(dscaled<kBits, kLevels>(dots[r][v], scale, below), vset(scale_at(x + r * kStride)), before);
            acc.put(r, v, kMinimums ? vfma(minimum, vset(scaled_sum_at(x + r * kStride)), sum) : sum);
        }
    }
}

template <int R, int V> inline __attribute__((always_inline)) void clear_dots(Dots (&dots)[R][V]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) dots[r][v] = dzero();
    }
}

// The dots of a group of a span are added to others. kInOrder: in the order of memory, as in accumulate_group, and to what does not wait
// for the group before.
template <int kStride, bool kInOrder, int R, int V>
inline __attribute__((always_inline)) void dot_span(Dots (&dots)[R][V], const char* x, const char* w) {
    if constexpr (!kInOrder) return dot_bytes8<kStride, 0>(dots, x, w);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        Dots own[R][1];
        clear_dots(own);
        dot_bytes8<kStride, 0>(own, x, w + place_of_column(8, v * W));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) dots[r][v] = dadd(dots[r][v], own[r][0]);
    }
}

// Adds a span's products, whose dots are of 8 bits without a bias, `x` and `scales` being those of its last group.
template <int R, int V, class Acc>
inline __attribute__((always_inline)) void accumulate_span(Acc& acc, const Dots (&dots)[R][V], const char* x, const char* scales) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        const Vec scale = vload_half(scales + v * W * 2);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const char* record = x + r * record_bytes(8, 1);
            const Dots all = kShifted ? dadd(dots[r][v], dset(offset_of_all(record))) : dots[r][v];
            acc.put(r, v, vfma(vmul(dfloat(all), scale), vset(scale_at(record)), acc.get(r, v)));
        }
    }
}

// A tile's pass over the groups [group0, group1) of a block. What the groups before them gave is in `sums`, [row][output of the
// block], and so is what these add; if they are the last, the result goes out. At each group the pass prefetches
// `fetch_bytes` from `fetch` on, where `far` says so only into the second-level cache, or where `fronts` says so by them, and
// `later_bytes` of what comes later from `later` on.
struct TilePass {
    int64_t row, block, group0, group1;
    float* sums;
    const char* lines; // of group0, if they are unpacked
    const char *fetch, *later;
    const char *fetch_end, *fetch_after; // there it goes on elsewhere; may be null
    int64_t fetch_bytes, later_bytes;
    bool far, fronts;
};

// Times that a tile of so many rows walks its groups: as often as registers are too few for a block.
constexpr int passes_of(int64_t rows) { return kIntegerColumns / (vecs_of(rows) * W); }

constexpr int kLeastOnFronts = 4; // rows; fewer are read as fast as memory is without

constexpr int kRowsInOrder = W == 16 ? 6 : 1; // at most; a line of weights is one vector, or two

template <int R, int kBits, int kLevels, bool kUnpacked, bool kSpans = false, bool kInOrder = false>
__attribute__((noinline)) void integer_tile(const IntegerLinearArgs& a, const TilePass& pass) {
    constexpr int V = vecs_of(R), kPasses = passes_of(R), kStep = R * record_bytes(kBits, kLevels);
    constexpr int64_t kBytes = group_bytes(kBits);
    const bool first = pass.group0 == 0, last = pass.group1 == a.groups, on_fronts = R >= kLeastOnFronts && !kUnpacked && pass.fronts;
    const int64_t fetch_bytes = (pass.fetch_bytes + kPasses - 1) / kPasses, later_bytes = (pass.later_bytes + kPasses - 1) / kPasses;
    const char *fetch = pass.fetch, *fetch_end = fetch, *later = pass.later, *later_end = later;
    for (int column = 0; column < kIntegerColumns; column += V * W) {
        const char* x = a.x + pass.row * a.groups * (kStep / R) + pass.group0 * kStep;
        const char* w = a.weight + (pass.block * a.groups + pass.group0) * kBytes;
        const int64_t at = place_of_column(kBitsRead<kBits, kUnpacked>, column);
        const int64_t scales = kUnpacked ? kGroupLines + column * 4 : scale_of_column(kBits, column);
        const char* lines = pass.lines;
        Fronts fronts;
        if (on_fronts) fronts = Fronts(w, a.reading);
        Sums<R, V> acc;
        Dots dots[R][V];
        if constexpr (kSpans) clear_dots(dots);
        acc.begin(pass.sums + column, first);
        for (int64_t g = pass.group0; g < pass.group1; ++g, w += kBytes, x += kStep) {
            if (on_fronts) {
                fronts.fetch<kBytes / kFetched>();
            } else {
                if (fetch == pass.fetch_end) fetch = fetch_end = pass.fetch_after;
                fetch_end += fetch_bytes;
                if (pass.far) {
                    for (; fetch < fetch_end; fetch += kLine) __builtin_prefetch(fetch, 0, 2);
                } else {
                    for (; fetch < fetch_end; fetch += kLine) __builtin_prefetch(fetch);
                }
            }
            for (later_end += later_bytes; later < later_end; later += kLine) __builtin_prefetch(later, 0, 2);
            const char* group = kUnpacked ? lines : w;
            if constexpr (kSpans) {
                dot_span<kStep / R, kInOrder>(dots, x, w + at);
                if (ends_span(a.ends, g)) {
                    accumulate_span(acc, dots, x, w + scales);
                    clear_dots(dots);
                }
            } else {
                accumulate_group<R, V, kBits, kLevels, kUnpacked>(acc, x, group + at, group + scales);
            }
            if (kUnpacked) lines += kGroupUnpacked;
        }
        if (last) {
            int64_t columns[V];
            for (int v = 0; v < V; ++v) columns[v] = pass.block * kIntegerColumns + column + v * W;
            acc.store(a, pass.row, columns);
        } else {
            acc.keep();
        }
    }
}

// Rows, at most, of a tile that is alone. With one level of 8 bits nothing is unpacked, so that two tiles may cost less than sums in
// memory.
constexpr int64_t rows_alone(int bits, int levels) { return bits == 8 && levels == 1 ? kRowsAloneEight : kRowsAlone; }

int64_t tiles_of(int64_t rows, int bits, int levels, bool spans) {
    return rows <= (spans ? kRowsAlone : rows_alone(bits, levels)) ? 1 : (rows + kIntegerRows - 1) / kIntegerRows;
}

typedef void (*IntegerTile)(const IntegerLinearArgs&, const TilePass&);

struct IntegerTiles {
    IntegerTile of[2][4][kRowsAlone + 1]{}; // [levels less one][index of the bits][rows]
    IntegerTile unpacked[2][2][kIntegerRows + 1]{}; // of 4 and 6 bits
    IntegerTile shared[kIntegerRows + 1]{}, alone[kRowsAlone + 1]{}; // of spans, beside other tiles and without
    template <int kBits, int R> constexpr void fill() {
        if constexpr (R > 0) {
            if constexpr (R <= rows_alone(kBits, 1)) of[0][index_of_bits(kBits)][R] = integer_tile<R, kBits, 1, false>;
            of[1][index_of_bits(kBits)][R] = integer_tile<R, kBits, 2, false>;
            if constexpr (kBits == 8) alone[R] = integer_tile<R, 8, 1, false, true, R <= kRowsInOrder>;
            if constexpr (kBits == 8 && R <= kIntegerRows) shared[R] = integer_tile<R, 8, 1, false, true>;
            if constexpr ((kBits == 4 || kBits == 6) && R >= kIntegerRows / 2 && R <= kIntegerRows) { // of two tiles or more each has half of them at least
                unpacked[0][kBits == 6][R] = integer_tile<R, kBits, 1, true>;
                unpacked[1][kBits == 6][R] = integer_tile<R, kBits, 2, true>;
            }
            fill<kBits, R - 1>();
        }
    }
    constexpr IntegerTiles() {
        fill<4, kRowsAlone>();
        fill<5, kRowsAlone>();
        fill<6, kRowsAlone>();
        fill<8, kRowsAlone>();
    }
};

constexpr IntegerTiles kIntegerTiles;

// So many tiles meet weights of 6 bits unpacked, each counted for every level of activations, and of 4 bits where unpacking takes the
// units that products take. Others are unpacked sooner than their bytes are read.
constexpr int64_t kTilesToUnpack = 3, kChunkOfUnpacked = 25 << 10;

// What all tiles pass before any goes on, at most, in bytes of weights: it and the next one stay in the nearest cache. Many tiles
// pass a larger one, because going on to the next tile costs more than coming back to the weights.
constexpr int64_t kFewTiles = 8, kChunkOfFew = 12 << 10, kChunkOfMany = 24 << 10;
// Bytes, whole groups of them, ahead of a tile that is alone. Hardware keeps up with one row, or two that take more bytes for a product.
inline int64_t ahead_of(const IntegerLinearArgs& a) {
    const bool hardware = a.tuning == Tuning::zen4 && (a.rows == 1 || (a.rows == 2 && a.bits > 4));
    const int64_t bytes = hardware ? 1 << 10 : a.tuning == Tuning::zen5 ? 8 << 10 : 6 << 10;
    return round_up(bytes, group_bytes(a.bits));
}
constexpr int64_t kTilesAtOnce = 32; // tiles, at most, that pass a chunk

// What of a piece is still to be fetched.
struct PieceLeft {
    const char *at = nullptr, *end = nullptr;
};

// Gives a pass over so many groups its share of the pieces: so many bytes for each group, as far as a piece lasts.
inline void fetch_later(Pieces* pieces, PieceLeft& left, int64_t groups, int64_t bytes, TilePass& pass) {
    pass.later_bytes = 0;
    if (pieces) ++pieces->passes;
    if (left.at == left.end) {
        const char* piece = bytes ? next_piece(pieces) : nullptr;
        if (!piece) return;
        left = {piece, piece + pieces->bytes};
    }
    pass.later = left.at;
    pass.later_bytes = bytes;
    left.at += min64(left.end - left.at, groups * bytes);
}

// Bytes of pieces for each group of a pass over so many: 4 KB in all.
inline int64_t later_a_group(int64_t groups) { return ((4 << 10) + groups - 1) / groups; }

// The same for a tile of vectors. Intel's first-level cache has few places for lines under way: more of them than this would keep a
// group's products waiting. Zen 4 takes them evenly until attention comes.
inline int64_t later_a_group(const IntegerLinearArgs& a, int64_t groups, int64_t tiles) {
    if (a.tuning == Tuning::zen4 && a.pieces) return (a.pieces->share + groups - 1) / groups;
    if (a.tuning != Tuning::common) return later_a_group(groups);
    return kLine * a.levels * (tiles == 1 ? a.rows / 3 : 2);
}

// While tiles pass a chunk of the weights, they fetch the next one, each its share, so that reading memory and computing overlap.
// A tile that is alone and walks its groups once reads them as they come, a stream that goes on where the next product begins.
void multiply_block(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block, PieceLeft& left) {
    alignas(64) float sums[kTilesAtOnce * kIntegerRows * kIntegerColumns];
    alignas(64) char lines[kChunkOfUnpacked];
    const EvenTiles rows(a.rows, a.tiles);
    const int64_t tiles = tile1 - tile0, row0 = rows.begin(tile0);
    const int64_t bytes = group_bytes(a.bits);
    const bool four = a.bits == 4 && a.tuning == Tuning::common && tiles >= kTilesToUnpack;
    const bool unpacked = four || (a.bits == 6 && tiles * a.levels >= kTilesToUnpack);
    const IntegerTile* kernels = unpacked ? kIntegerTiles.unpacked[a.levels - 1][a.bits == 6] : kIntegerTiles.of[a.levels - 1][index_of_bits(a.bits)];
    if (a.ends) kernels = tiles == 1 ? kIntegerTiles.alone : kIntegerTiles.shared;
    const int64_t largest = unpacked ? kChunkOfUnpacked / kGroupUnpacked : (tiles > kFewTiles ? kChunkOfMany : kChunkOfFew) / bytes;
    const bool streams = tiles == 1 && passes_of(a.rows) == 1;
    // The second level is as good for spans, whose dots are all that there is to do; what would be done between chunks is not little.
    const int64_t chunks = streams || a.ends ? 1 : (a.groups + largest - 1) / largest;
    const char *start = a.weight + block * a.groups * bytes, *end = a.reading.end, *after = a.reading.after;
    TilePass pass{};
    pass.block = block;
    pass.fetch_bytes = (bytes + tiles - 1) / tiles;
    pass.far = streams ? a.tuning != Tuning::zen5 : a.ends != 0;
    pass.fronts = streams && a.tuning == Tuning::common;
    pass.lines = lines;
    pass.fetch_after = after;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        pass.group0 = a.groups * chunk / chunks;
        pass.group1 = a.groups * (chunk + 1) / chunks;
        pass.fetch = streams ? start + ahead_of(a) : start + pass.group1 * bytes;
        if (after && pass.fetch >= end) pass.fetch += after - end;
        else if (after && streams) pass.fetch_end = end;
        const int64_t groups = pass.group1 - pass.group0, later_bytes = later_a_group(a, groups, tiles);
        const char* packed = start + pass.group0 * bytes;
        const auto unpack = a.bits == 6 ? unpack_group<6> : unpack_group<4>;
        for (int64_t g = 0; unpacked && g < groups; ++g) unpack(packed + g * bytes, lines + g * kGroupUnpacked);
        for (int64_t tile = tile0; tile < tile1; ++tile, pass.fetch += groups * pass.fetch_bytes) {
            pass.row = rows.begin(tile);
            pass.sums = sums + (pass.row - row0) * kIntegerColumns;
            fetch_later(a.pieces, left, groups, later_bytes, pass);
            kernels[rows.rows(tile)](a, pass);
        }
    }
}

void linear_integer(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block0, int64_t block1) {
    PieceLeft left;
    for (int64_t block = block0; block < block1; ++block) {
        for (int64_t tile = tile0; tile < tile1; tile += kTilesAtOnce) {
            multiply_block(a, tile, min64(tile1, tile + kTilesAtOnce), block, left);
        }
    }
}

void embedding_integer(const IntegerEmbeddingArgs& a, int64_t row0, int64_t row1) {
    const int64_t block_bytes = a.groups * group_bytes(a.bits);
    for (int64_t r = row0; r < row1; ++r) {
        const int64_t n = a.ids[r];
        const char* block = a.table + n / kIntegerColumns * block_bytes;
        read_grouped_column(block, n % kIntegerColumns, a.groups, a.bits, a.out + r * a.groups * kGroup);
    }
}
