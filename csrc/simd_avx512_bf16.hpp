// AVX-512 with dot products of bf16 pairs. Included inside the instruction set's own namespace.

#include "simd_avx512.hpp"

// acc + the products of the pair with each pair of w, accumulated in fp32.
inline Vec vdot(Vec acc, int32_t pair, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
}

// The pair at p, for vdot.
inline int32_t pair_at(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return pair;
}

// W pairs of bf16 for vdot; of each, the bits of kKept.
template <uint32_t kKept = ~0u> inline Vec vpairs(const uint16_t* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(kKept == ~0u ? pairs : _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(kKept))));
}
template <int P> inline Vec vpairs(const uint16_t* const* p, int64_t at) { return _mm512_castsi512_ps(vjoin<P>(p, at)); }

// 2^x within 2^-13 of itself, far more exact than bf16; 0 far below, and of NaN. x is at most about 0.
inline Vec vpow2_near(Vec x) {
    const Vec y = vmax(x, vset(-200.0f)), part = _mm512_reduce_ps(y, 1); // what is above the next whole number below
    Vec p = vset(0.077067058f);
    p = vfma(p, part, vset(0.22764498f));
    p = vfma(p, part, vset(0.69511679f));
    p = vfma(p, part, vset(1.0f));
    return _mm512_scalef_ps(p, y);
}
