// Bytes of words as numbers, with AVX-512. Included inside the instruction set's own namespace, after simd_integer_avx512.hpp.

#ifdef __AVX512BF16__

// Pairs of inputs, one for each of 16 columns, as products with pairs take them. The instruction that rounds two vectors puts one
// after the other, so vectors hold pairs from the beginning: two inputs of eight columns.
typedef Vec Pairs;
inline void store_pairs(uint16_t* p, Pairs pairs) { vstore(reinterpret_cast<float*>(p), pairs); }

struct Words {
    __m512i of[2]; // of eight columns, each twice
};
inline __m512i twice(int half) {
    return half ? _mm512_set_epi32(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8)
                : _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
}
inline Words load_words(const char* p) {
    const __m512i words = _mm512_loadu_si512(p);
    return {{_mm512_permutexvar_epi32(twice(0), words), _mm512_permutexvar_epi32(twice(1), words)}};
}

template <bool kFour> struct GroupScales {
    explicit GroupScales(const char* p) {
        const Vec given = vload_half(p);
        // 8 bits are stored as value + 128. Products are exact: what is rounded is the sum, and then the number.
        const Vec added = kFour ? vload_half(p + kIntegerColumns * 2) : vmul(given, vset(-128.0f));
        for (int half = 0; half < 2; ++half) {
            scale[half] = _mm512_permutexvar_ps(twice(half), given);
            minimum[half] = _mm512_permutexvar_ps(twice(half), added);
        }
    }
    Vec scale[2], minimum[2];
};

// The numbers of four inputs: with 4 bits those in the low or in the high halves of the words' bytes.
template <bool kFour, bool kHigh> inline void unpack(const Words& words, const GroupScales<kFour>& scales, Pairs (&to)[2]) {
    const __m512i odd = _mm512_set_epi32(8, 0, 8, 0, 8, 0, 8, 0, 8, 0, 8, 0, 8, 0, 8, 0); // the second of a pair is in the next byte
    const Vec numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
        const __m512i shift = _mm512_add_epi32(odd, _mm512_set1_epi32(pair * 16 + (kHigh ? 4 : 0)));
        Vec values[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m512i bits = _mm512_srlv_epi32(words.of[half], shift); // permutations see the lowest four
            const Vec whole = kFour ? _mm512_permutexvar_ps(bits, numbers)
                                    : _mm512_cvtepi32_ps(_mm512_and_si512(bits, _mm512_set1_epi32(255)));
            values[half] = vfma(whole, scales.scale[half], scales.minimum[half]);
        }
        to[pair] = (Vec)_mm512_cvtne2ps_pbh(values[1], values[0]);
    }
}

#else

// Byte I of each word.
template <int I> inline Vec dbyte(Bytes b) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(b, 8 * I), _mm512_set1_epi32(255)));
}
// 2^16 and a half times the power of two that is not above |v|.
inline Vec dfar_above(Vec v) {
    const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7F800000));
    return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x08400000)));
}
// What are bf16 numbers already, side by side.
inline void vstore_pairs(uint16_t* p, Vec even, Vec odd) {
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd)));
}

#include "simd_grouped_fp32.hpp"

#endif
