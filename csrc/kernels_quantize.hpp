// Quantizes weights, W groups at once, a group to each lane. The operations and their order are those of
// octavo/quant/integer.py, so both give the same bits. Included inside the instruction set's own namespace, after
// kernels_integer.hpp.

// lanes[i]: value i of the groups from `group` on, zeros beyond `count` of them. False where a value is not finite.
template <bool kBf16> inline bool load_groups(const void* x, int64_t group, int64_t count, Vec (&lanes)[kGroup]) {
    uint32_t words[kGroup * W] = {}, largest = 0;
    for (int64_t lane = 0; lane < count; ++lane) {
        uint32_t row[kGroup];
        if constexpr (kBf16) {
            const uint16_t* from = static_cast<const uint16_t*>(x) + (group + lane) * kGroup;
            for (int i = 0; i < kGroup; ++i) row[i] = static_cast<uint32_t>(from[i]) << 16;
        } else {
            __builtin_memcpy(row, static_cast<const uint32_t*>(x) + (group + lane) * kGroup, sizeof row);
        }
        for (int i = 0; i < kGroup; ++i) {
            const uint32_t magnitude = row[i] & 0x7FFFFFFFu;
            largest = magnitude > largest ? magnitude : largest;
        }
        for (int i = 0; i < kGroup; ++i) words[i * W + lane] = row[i];
    }
    for (int i = 0; i < kGroup; ++i) __builtin_memcpy(&lanes[i], words + i * W, sizeof(Vec));
    return largest < 0x7F800000u;
}

// The sum of kGroup terms, halves added until one is left.
template <class Term> inline __attribute__((always_inline)) Vec total(const Term& term) {
    Vec sums[kGroup / 2];
    for (int i = 0; i < kGroup / 2; ++i) sums[i] = vadd(term(i), term(i + kGroup / 2));
    for (int half = kGroup / 4; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sums[i] = vadd(sums[i], sums[i + half]);
    }
    return sums[0];
}

inline Vec rounded_to_half(Vec v) {
    char halves[2 * W];
    vstore_half(halves, v);
    return vload_half(halves);
}
// Rounded to float16, but never to nothing; what is not positive becomes 0.
inline Vec scale_as_stored(Vec scale) {
    const Vec smallest = vset(5.9604644775390625e-8f); // 2^-24
    return rounded_to_half(vselect_ge(vzero(), scale, vzero(), vmax(scale, smallest)));
}
inline Vec inverse_of(Vec scale) { return vselect_ge(vzero(), scale, vzero(), vdiv(vset(1.0f), scale)); }
inline Vec magnitude_of(Vec v) { return vmax(v, vsub(vzero(), v)); }

constexpr float kShrink[] = {1.0f, 0.88f};

struct FewBits {
    Vec scale, minimum, error;
    Vec quants[kGroup];
};

// The values nearest to the groups for that scale and minimum as they are stored, without the error.
template <int kMost> inline void choose_values(const Vec (&x)[kGroup], Vec scale, Vec minimum, FewBits& out) {
    out.scale = scale_as_stored(scale);
    out.minimum = rounded_to_half(minimum);
    const Vec inverse = inverse_of(out.scale);
    for (int i = 0; i < kGroup; ++i) {
        const Vec quant = vround(vmul(vsub(x[i], out.minimum), inverse));
        out.quants[i] = vmin(vmax(quant, vzero()), vset(static_cast<float>(kMost)));
    }
}

inline void measure_error(const Vec (&x)[kGroup], FewBits& found) {
    found.error = total([&](int i) {
        const Vec wrong = vsub(vadd(vmul(found.quants[i], found.scale), found.minimum), x[i]);
        return vmul(wrong, wrong);
    });
}

// Replaces scale and minimum by those that suit the values best: a linear regression for each group.
inline void fit(const Vec (&x)[kGroup], const FewBits& rough, Vec& scale, Vec& minimum) {
    const Vec part = vset(1.0f / kGroup);
    const Vec mean = vmul(total([&](int i) { return x[i]; }), part);
    const Vec middle = vmul(total([&](int i) { return rough.quants[i]; }), part);
    Vec around[kGroup];
    for (int i = 0; i < kGroup; ++i) around[i] = vsub(rough.quants[i], middle);
    const Vec variance = total([&](int i) { return vmul(around[i], around[i]); });
    const Vec covariance = total([&](int i) { return vmul(around[i], x[i]); });
    const Vec slope = vdiv(covariance, variance), base = vsub(mean, vmul(slope, middle)), least = vmin(variance, covariance);
    scale = vselect_ge(vzero(), least, rough.scale, slope);
    minimum = vselect_ge(vzero(), least, rough.minimum, base);
}

struct Range {
    Vec low, high;
};

inline Range range_of(const Vec (&x)[kGroup]) {
    Range range{x[0], x[0]};
    for (int i = 1; i < kGroup; ++i) {
        range.low = vmin(range.low, x[i]);
        range.high = vmax(range.high, x[i]);
    }
    // -0 becomes 0: which of the two a minimum is depends on the order of its search
    return {vadd(range.low, vzero()), vadd(range.high, vzero())};
}

// `reach` grows to the largest magnitude of a scale and a minimum.
inline void widen(Vec& reach, const FewBits& tried) {
    reach = vmax(tried.scale, reach);
    reach = vmax(magnitude_of(tried.minimum), reach);
}

// `reach` grows with all scales and minimums that are tried.
inline void search_four_bits(const Vec (&x)[kGroup], FewBits& best, Vec& reach) {
    const auto [low, high] = range_of(x);
    const Vec middle = vmul(vadd(low, high), vset(0.5f)), half = vmul(vsub(high, low), vset(0.5f));
    const Vec step = vset(static_cast<float>(2.0 / 15.0));
    choose_values<15>(x, vmul(half, step), low, best);
    widen(reach, best);
    measure_error(x, best);
    for (const float part : kShrink) {
        FewBits found;
        const Vec span = vmul(half, vset(part));
        choose_values<15>(x, vmul(span, step), vsub(middle, span), found);
        widen(reach, found);
        Vec scale, minimum;
        fit(x, found, scale, minimum);
        choose_values<15>(x, scale, minimum, found);
        widen(reach, found);
        measure_error(x, found);
        for (int i = 0; i < kGroup; ++i) best.quants[i] = vselect_ge(found.error, best.error, best.quants[i], found.quants[i]);
        best.scale = vselect_ge(found.error, best.error, best.scale, found.scale);
        best.minimum = vselect_ge(found.error, best.error, best.minimum, found.minimum);
        best.error = vselect_ge(found.error, best.error, best.error, found.error);
    }
}

// kBytes bytes of each of `count` groups; quants[i]: byte i of them all, a whole number from -128 to 255.
template <int kBytes> inline void store_bytes(const Vec* quants, uint8_t* out, int64_t count) {
    float wide[kBytes * W];
    uint8_t bytes[kBytes * W];
    for (int i = 0; i < kBytes; ++i) vstore(wide + i * W, quants[i]);
    for (int i = 0; i < kBytes * W; ++i) bytes[i] = static_cast<uint8_t>(static_cast<int32_t>(wide[i]));
    for (int64_t lane = 0; lane < count; ++lane) {
        for (int i = 0; i < kBytes; ++i) out[lane * kBytes + i] = bytes[i * W + lane];
    }
}

inline void store_halves(Vec v, uint16_t* out, int64_t count) {
    uint16_t halves[W];
    vstore_half(reinterpret_cast<char*>(halves), v);
    __builtin_memcpy(out, halves, static_cast<size_t>(count) * 2);
}

inline void quantize_four(const Vec (&x)[kGroup], const QuantizeWeightsArgs& a, int64_t group, int64_t count, Vec& reach) {
    FewBits best;
    search_four_bits(x, best, reach);
    Vec codes[kGroup / 2];
    for (int i = 0; i < kGroup / 2; ++i) codes[i] = vadd(best.quants[i], vmul(best.quants[i + kGroup / 2], vset(16.0f)));
    store_bytes<kGroup / 2>(codes, a.values + group * (kGroup / 2), count);
    store_halves(best.scale, a.scales + group, count);
    store_halves(best.minimum, a.minimums + group, count);
}

// From the least value to the largest, without a search.
inline void quantize_five(const Vec (&x)[kGroup], const QuantizeWeightsArgs& a, int64_t group, int64_t count, Vec& reach) {
    const auto [low, high] = range_of(x);
    FewBits chosen;
    choose_values<31>(x, vmul(vsub(high, low), vset(1.0f / 31)), low, chosen);
    widen(reach, chosen);
    store_bytes<kGroup>(chosen.quants, a.values + group * kGroup, count);
    store_halves(chosen.scale, a.scales + group, count);
    store_halves(chosen.minimum, a.minimums + group, count);
}

inline void quantize_eight(const Vec (&x)[kGroup], const QuantizeWeightsArgs& a, int64_t group, int64_t count, Vec& reach) {
    Vec largest = vzero(), quants[kGroup];
    for (int i = 0; i < kGroup; ++i) largest = vmax(largest, magnitude_of(x[i]));
    if (a.largest) largest = vload_part(a.largest + group, count);
    const Vec scale = scale_as_stored(vdiv(largest, vset(127.0f))), inverse = inverse_of(scale);
    reach = vmax(scale, reach);
    for (int i = 0; i < kGroup; ++i) {
        quants[i] = vmin(vmax(vround(vmul(x[i], inverse)), vset(-127.0f)), vset(127.0f));
    }
    store_bytes<kGroup>(quants, a.values + group * kGroup, count);
    store_halves(scale, a.scales + group, count);
}

QuantizeProblem quantize_weights(const QuantizeWeightsArgs& a, int64_t group0, int64_t group1) {
    Vec reach = vzero();
    for (int64_t group = group0; group < group1; group += W) {
        const int64_t count = min64(W, group1 - group);
        Vec x[kGroup];
        if (!(a.x_bf16 ? load_groups<true>(a.x, group, count, x) : load_groups<false>(a.x, group, count, x))) {
            return QuantizeProblem::not_finite;
        }
        if (a.bits == 4) quantize_four(x, a, group, count, reach);
        else if (a.bits == 5) quantize_five(x, a, group, count, reach);
        else quantize_eight(x, a, group, count, reach);
    }
    return vmax_of(reach) > 65504.0f ? QuantizeProblem::too_large : QuantizeProblem::none;
}

constexpr IntegerKernels integer_table(const char* name) {
    return {.name = name,
            .few = nullptr,
            .rows_at_memory = kRowsAtMemory,
            .rows_of_part = 96,
            .tiles = tiles_of,
            .linear = linear_integer,
            .quantize = quantize_rows,
            .measure = measure_rows,
            .embedding = embedding_integer,
            .quantize_weights = quantize_weights,
            .int8_peak = &kInt8Peak,
            .pairs = kGroupPairs};
}
