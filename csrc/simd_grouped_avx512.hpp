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
inline Vec every_other(float even, float odd) {
    return _mm512_set_ps(odd, even, odd, even, odd, even, odd, even, odd, even, odd, even, odd, even, odd, even);
}
inline Words spread(Bytes words) {
    return {{_mm512_permutexvar_epi32(twice(0), words), _mm512_permutexvar_epi32(twice(1), words)}};
}

// A byte is converted where it stands in its word; the powers of two that this brings in are taken out of the scales.
template <int kBits> struct GroupScales {
    GroupScales() = default;
    explicit GroupScales(const char* p) {
        const Vec given = vload_half(p);
        // Products are exact: what is rounded is the sum, and then the number.
        const Vec added = kBits < 6 ? vload_half(p + kIntegerColumns * 2) : vmul(given, vset(-kOffset<kBits>));
        for (int half = 0; half < 2; ++half) {
            minimum[half] = _mm512_permutexvar_ps(twice(half), added);
            scale[half][0] = vmul(_mm512_permutexvar_ps(twice(half), given), every_other(1.0f, 0x1p-8f));
            scale[half][1] = vmul(scale[half][0], vset(0x1p-16f));
        }
    }
    Vec scale[2][2], minimum[2]; // [half][pair]
};

// The numbers of four inputs: with 4 bits those in the low or in the high halves of the words' bytes, else of whole bytes.
template <int kBits, bool kHigh> inline void unpack(const Words& words, const GroupScales<kBits>& scales, Pairs (&to)[2]) {
    constexpr int kByte = kBits == 4 ? 15 : 255;
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
        const __m512i own = _mm512_set1_epi64(static_cast<int64_t>((uint64_t{kByte} << 40 | kByte) << pair * 16));
        Vec values[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m512i bits = kBits == 4 && kHigh ? _mm512_srli_epi32(words.of[half], 4) : words.of[half];
            values[half] = vfma(_mm512_cvtepu32_ps(_mm512_and_si512(bits, own)), scales.scale[half][pair], scales.minimum[half]);
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
