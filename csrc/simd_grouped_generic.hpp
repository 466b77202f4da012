// Bytes of words as numbers, in the compiler's own vectors. Included inside the namespace of its user, after simd_integer_generic.hpp.

// Byte I of each word.
template <int I> inline Vec dbyte(Bytes b) { return __builtin_convertvector(reinterpret_cast<Dots>(b >> (8 * I) & 255u), Vec); }
// 2^16 and a half times the power of two that is not above |v|.
inline Vec dfar_above(Vec v) { return reinterpret_cast<Vec>((reinterpret_cast<WordVec>(v) & 0x7F800000u) + 0x08400000u); }
// What are bf16 numbers already, side by side (little-endian words).
inline void vstore_pairs(uint16_t* p, Vec even, Vec odd) {
    const WordVec pairs = (reinterpret_cast<WordVec>(even) >> 16) | reinterpret_cast<WordVec>(odd);
    __builtin_memcpy(p, &pairs, sizeof pairs);
}

#include "simd_grouped_fp32.hpp"
