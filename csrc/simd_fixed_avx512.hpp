// Compact blocks as whole numbers of 16 bits, with AVX-512. Included inside the instruction set's own namespace, after
// simd_avx512.hpp.

// Exponents without their last bits, and signs, of the numbers that codes stand for.
struct FixedCodes {
    __m256i exponents, signs;
};
inline FixedCodes fixed_codes(const uint8_t* highs) {
    const __m256i upper = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(highs)));
    const __m256i exponents = _mm256_slli_epi16(_mm256_and_si256(upper, _mm256_set1_epi16(127)), 1);
    const __m256i none = _mm256_cmpeq_epi16(exponents, _mm256_setzero_si256()); // zeros above all: what has no exponent has no factor
    return {_mm256_or_si256(exponents, _mm256_slli_epi16(none, 12)), _mm256_srai_epi16(_mm256_slli_epi16(upper, 8), 15)};
}

// Bytes of the factors, in all parts of a register.
struct FixedFactors {
    __m512i low, high;
};
inline FixedFactors fixed_factors(const FixedCodes& codes, int least) {
    // Counts below 0 are very large ones, and leave nothing.
    const __m256i power = _mm256_sub_epi16(codes.exponents, _mm256_set1_epi16(static_cast<int16_t>(least)));
    const __m256i plain = _mm256_sllv_epi16(_mm256_set1_epi16(1), power);
    const __m256i factors = _mm256_sub_epi16(_mm256_xor_si256(plain, codes.signs), codes.signs);
    const __m128i low = _mm256_cvtepi16_epi8(factors), high = _mm256_cvtepi16_epi8(_mm256_srli_epi16(factors, 8));
    return {_mm512_broadcast_i32x4(low), _mm512_broadcast_i32x4(high)};
}

// A pair of inputs, the first or the second of a compact group: of columns 0 to 15, then of 16 to 31.
inline __attribute__((always_inline)) void fix_half(const uint8_t* group, int half, int, const FixedFactors& factors, IntPairs (&to)[2]) {
    const __m512i codes = _mm512_loadu_si512(group), lower = _mm512_loadu_si512(group + 64 + half * 64);
    const __m512i mine = _mm512_and_si512(half ? _mm512_srli_epi16(codes, 4) : codes, _mm512_set1_epi8(15));
    const __m512i low = _mm512_shuffle_epi8(factors.low, mine), high = _mm512_shuffle_epi8(factors.high, mine);
    // The lower byte plus 128 or, if it is not below that, itself.
    const __m512i more = _mm512_max_epu8(lower, _mm512_set1_epi8(-128)), times = _mm512_set1_epi8(64);
    const __m512i left = _mm512_maddubs_epi16(_mm512_unpacklo_epi8(lower, more), times);
    const __m512i right = _mm512_maddubs_epi16(_mm512_unpackhi_epi8(lower, more), times);
    to[0] = _mm512_mulhrs_epi16(left, _mm512_unpacklo_epi8(low, high));
    to[1] = _mm512_mulhrs_epi16(right, _mm512_unpackhi_epi8(low, high));
}

// Of the magnitudes of bf16 numbers those of b, or a where those are larger; NaN is above all.
inline IntPairs larger_magnitudes(IntPairs a, IntPairs b) { return _mm512_max_epu16(a, _mm512_and_si512(b, _mm512_set1_epi16(0x7FFF))); }
inline int largest_exponent(IntPairs magnitudes) {
    // What is missing to the largest number of bits: an instruction finds the least of eight.
    const __m512i missing = _mm512_sub_epi16(_mm512_set1_epi16(0x7FFF), magnitudes);
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(missing), _mm512_extracti64x4_epi64(missing, 1));
    const __m128i eight = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (0x7FFF - (_mm_cvtsi128_si32(_mm_minpos_epu16(eight)) & 0xFFFF)) >> 7;
}
// bf16 numbers times powers of two, as many times 2^7; denormal ones become zeros.
inline IntPairs shift_exponents(IntPairs numbers, IntPairs more) {
    const __mmask32 normal = _mm512_test_epi16_mask(numbers, _mm512_set1_epi16(0x7F80));
    return _mm512_mask_add_epi16(_mm512_and_si512(numbers, _mm512_set1_epi16(-0x8000)), normal, numbers, more);
}
