// Compact blocks as whole numbers of 16 bits, with AVX2. Included inside the instruction set's own namespace, after
// simd_avx2.hpp.

// See simd_fixed_avx512.hpp.
struct FixedCodes {
    __m256i exponents[2], signs[2]; // of eight codes each
};
inline FixedCodes fixed_codes(const uint8_t* highs) {
    FixedCodes codes;
    for (int i = 0; i < 2; ++i) {
        const __m256i upper = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(highs + 8 * i)));
        const __m256i exponents = _mm256_slli_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(127)), 1);
        const __m256i none = _mm256_cmpeq_epi32(exponents, _mm256_setzero_si256());
        codes.exponents[i] = _mm256_or_si256(exponents, _mm256_slli_epi32(none, 12));
        codes.signs[i] = _mm256_srai_epi32(_mm256_slli_epi32(upper, 24), 31);
    }
    return codes;
}

struct FixedFactors {
    __m256i low, high;
    __m256i times; // 64 in each byte
};
inline FixedFactors fixed_factors(const FixedCodes& codes, int least) {
    __m256i factors[2];
    for (int i = 0; i < 2; ++i) {
        const __m256i power = _mm256_sub_epi32(codes.exponents[i], _mm256_set1_epi32(least));
        const __m256i plain = _mm256_sllv_epi32(_mm256_set1_epi32(1), power);
        factors[i] = _mm256_sub_epi32(_mm256_xor_si256(plain, codes.signs[i]), codes.signs[i]);
    }
    const __m256i all = _mm256_permute4x64_epi64(_mm256_packs_epi32(factors[0], factors[1]), 0xD8);
    const auto bytes = [](__m256i words) { // the lower ones
        const __m256i own = _mm256_and_si256(words, _mm256_set1_epi16(255));
        return _mm256_broadcastsi128_si256(_mm_packus_epi16(_mm256_castsi256_si128(own), _mm256_extracti128_si256(own, 1)));
    };
    __m256i times = _mm256_set1_epi8(64);
    __asm__("" : "+x"(times)); // else it is made anew for each pair of inputs
    return {bytes(all), bytes(_mm256_srli_epi16(all, 8)), times};
}

// A pair of inputs, the first or the second of a compact group: of eight columns from 8 * part on, and of those 16 further.
inline __attribute__((always_inline)) void fix_half(const uint8_t* group, int half, int part, const FixedFactors& factors, IntPairs (&to)[2]) {
    const __m256i codes = iload(group + part * 32), lower = iload(group + 64 + half * 64 + part * 32);
    const __m256i mine = _mm256_and_si256(half ? _mm256_srli_epi16(codes, 4) : codes, _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(factors.low, mine), high = _mm256_shuffle_epi8(factors.high, mine);
    const __m256i more = _mm256_max_epu8(lower, _mm256_set1_epi8(-128));
    const __m256i left = _mm256_maddubs_epi16(_mm256_unpacklo_epi8(lower, more), factors.times);
    const __m256i right = _mm256_maddubs_epi16(_mm256_unpackhi_epi8(lower, more), factors.times);
    to[0] = _mm256_mulhrs_epi16(left, _mm256_unpacklo_epi8(low, high));
    to[1] = _mm256_mulhrs_epi16(right, _mm256_unpackhi_epi8(low, high));
}

inline IntPairs larger_magnitudes(IntPairs a, IntPairs b) { return _mm256_max_epu16(a, _mm256_and_si256(b, _mm256_set1_epi16(0x7FFF))); }
inline int largest_exponent(IntPairs magnitudes) {
    const __m256i missing = _mm256_sub_epi16(_mm256_set1_epi16(0x7FFF), magnitudes);
    const __m128i eight = _mm_min_epu16(_mm256_castsi256_si128(missing), _mm256_extracti128_si256(missing, 1));
    return (0x7FFF - (_mm_cvtsi128_si32(_mm_minpos_epu16(eight)) & 0xFFFF)) >> 7;
}
inline IntPairs shift_exponents(IntPairs numbers, IntPairs more) {
    const __m256i exponents = _mm256_and_si256(numbers, _mm256_set1_epi16(0x7F80));
    const __m256i denormal = _mm256_cmpeq_epi16(exponents, _mm256_setzero_si256());
    const __m256i signs = _mm256_and_si256(numbers, _mm256_set1_epi16(-0x8000));
    return _mm256_blendv_epi8(_mm256_add_epi16(numbers, more), signs, denormal);
}
