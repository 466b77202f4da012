// Activations of integer products: quantized to records, and how much that changes them; see integer.hpp. Included inside the
// instruction set's own namespace, after simd_*.hpp, kernels_math.hpp and simd_integer_*.hpp.

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

inline uint32_t largest_of(const uint32_t* magnitudes, int64_t count, uint32_t largest) {
    for (int64_t i = 0; i < count; ++i) largest = magnitudes[i] > largest ? magnitudes[i] : largest;
    return largest;
}

// What records of pairs say beside bytes, for a row whose largest magnitude has these bits.
struct PairedRow {
    float unit, times; // scales times `times` are the numbers that records have of them

    explicit PairedRow(uint32_t largest) {
        float magnitude;
        __builtin_memcpy(&magnitude, &largest, sizeof magnitude);
        const bool number = largest < 0x7F800000u, some = number && magnitude >= 1e-30f;
        const float scale = magnitude / largest_value(1);
        unit = some ? scale * (32768.0f / kWholeScale) : number ? 0.0f : __builtin_nanf("");
        times = some ? kWholeScale / scale : 0.0f;
    }

    // Group g, at its record.
    void put(int64_t g, float scale, int32_t sum, char* record, int64_t stride) const {
        const int32_t whole = times > 0 ? static_cast<int32_t>(scale * times + 0.5f) : 0;
        const auto minimum = static_cast<int16_t>((kTooLarge * sum * whole + 0x4000) >> 15);
        const auto factor = static_cast<int16_t>(whole);
        const int32_t start = -kTooLarge * sum + (g % 2 == 0 ? kFlipped : 0);
        char *first = record - g % 2 * stride, *second = first + stride;
        __builtin_memcpy(record + kGroup, &start, sizeof start);
        __builtin_memcpy(first + kGroup + 4 + g % 2 * 2, &factor, sizeof factor);
        __builtin_memcpy(second + kGroup + 4 + g % 2 * 2, &minimum, sizeof minimum);
    }
};

// Up to kGroupsAtOnce groups, from element `at` on. The definition is in octavo/backends/base.py, at linear. A group's scale and
// then its numbers are one long chain; a processor cannot look far enough ahead to overlap many, so all scales come first. With pairs
// the row's unit goes to `unit`; `others` are the bits of the largest magnitude of what these groups may lack of the row.
template <bool kBf16, int kLevels>
inline void quantize_groups_at(const QuantizeArgs& a, int64_t at, int64_t groups, char* record, int64_t stride, uint32_t others, char* unit) {
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
    const PairedRow pairs(a.paired ? largest_of(largest, groups, others) : 0);
    if (a.paired) __builtin_memcpy(unit, &pairs.unit, sizeof pairs.unit);
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
        if (a.paired) {
            pairs.put(g, scale[g], sums.first + sums.second, record, stride);
            continue;
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
    char* unit = a.out + records_bytes(a.rows, a.groups, a.bits, a.levels, false) + row * 4;
    uint32_t largest = 0;
    for (int64_t g = 0; a.paired && a.groups > kGroupsAtOnce && g < a.groups; ++g) {
        const uint32_t own = largest_of_group<kBf16>(a.x, (row * a.groups + g) * kGroup);
        largest = largest_of(&own, 1, largest);
    }
    for (int64_t g = 0; g < a.groups; g += kGroupsAtOnce) {
        const int64_t groups = min64(kGroupsAtOnce, a.groups - g);
        quantize_groups_at<kBf16, kLevels>(a, (row * a.groups + g) * kGroup, groups, record + g * stride, stride, largest, unit);
    }
}

// call(row, record, stride) for the rows of tiles: a row's first record, and how far its records are apart.
template <class Call> inline void over_records(const QuantizeArgs& a, int64_t tile0, int64_t tile1, const Call& call) {
    const int64_t bytes = record_bytes(a.bits, a.levels);
    const EvenTiles rows(a.rows, a.tiles);
    for (int64_t tile = tile0; tile < tile1; ++tile) {
        const int64_t row0 = rows.begin(tile), size = rows.rows(tile);
        for (int64_t r = 0; r < size; ++r) call(row0 + r, a.out + (row0 * a.groups + r) * bytes, size * bytes);
    }
}

void quantize_rows(const QuantizeArgs& a, int64_t tile0, int64_t tile1) {
    const auto one_level = a.x_bf16 ? quantize_row<true, 1> : quantize_row<false, 1>;
    const auto two_levels = a.x_bf16 ? quantize_row<true, 2> : quantize_row<false, 2>;
    const auto quantize = a.levels == 2 ? two_levels : one_level;
    over_records(a, tile0, tile1, [&](int64_t row, char* record, int64_t stride) { quantize(a, row, record, stride); });
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
    const auto one_level = a.x_bf16 ? measure_row<true, 1> : measure_row<false, 1>;
    const auto two_levels = a.x_bf16 ? measure_row<true, 2> : measure_row<false, 2>;
    const auto measure = a.levels == 2 ? two_levels : one_level;
    over_records(a, tile0, tile1, [&](int64_t row, const char* record, int64_t stride) {
        measure(a, times, row, record, stride, lengths[row], changes[row]);
    });
}
