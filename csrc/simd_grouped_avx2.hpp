// Bytes of words as numbers, with AVX2. Included inside the instruction set's own namespace, after simd_integer_avx2.hpp.

// Byte I of each word.
template <int I> inline Vec dbyte(Bytes b) {
    constexpr int kNone = static_cast<int>(0x80808000u) + I;
    const __m256i place = _mm256_set_epi32(kNone + 12, kNone + 8, kNone + 4, kNone, kNone + 12, kNone + 8, kNone + 4, kNone);
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(b, place));
}
// 2^16 and a half times the power of two that is not above |v|.
inline Vec dfar_above(Vec v) {
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7F800000));
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x08400000)));
}
// What are bf16 numbers already, side by side.
inline void vstore_pairs(uint16_t* p, Vec even, Vec odd) {
    const __m256i pairs = _mm256_or_si256(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
}

#include "simd_grouped_fp32.hpp"
