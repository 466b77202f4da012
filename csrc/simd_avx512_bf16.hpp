// AVX-512 with dot products of bf16 pairs. Included inside the instruction set's own namespace.

#include "simd_avx512.hpp"

// acc + the products of the pair with each pair of w, accumulated in fp32.
inline Vec vdot(Vec acc, int32_t pair, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
}

// W pairs of bf16 for vdot; of each, the bits of kKept.
template <uint32_t kKept = ~0u> inline Vec vpairs(const uint16_t* p) {
    const __m512i pairs = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(kKept == ~0u ? pairs : _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(kKept))));
}
template <int P> inline Vec vpairs(const uint16_t* const* p, int64_t at) { return _mm512_castsi512_ps(vjoin<P>(p, at)); }
