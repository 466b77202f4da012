// AVX-512 with dot products of bf16 pairs. Included inside the instruction set's own namespace.

#include "simd_avx512.hpp"

// acc + the products of the pair with each pair of w, accumulated in fp32.
inline Vec vdot(Vec acc, int32_t pair, Vec w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
}
