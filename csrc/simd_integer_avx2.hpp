// Eight dots of four weights with four signed activations, exact. With VNNI one instruction; without, pairs of products whose
// sums never saturate. Included inside the instruction set's own namespace.

using Dots = __m256i;
using Bytes = __m256i;
constexpr int kIntegerRows = 6, kDotsOfLevels = 4, kRowsAlone = 6, kRowsAloneEight = 6, kRowsAtMemory = 0;
constexpr bool kFused = true; // vfma rounds once
constexpr bool kGroupPairs = false; // they gain nothing

inline Dots dzero() { return _mm256_setzero_si256(); }
inline Dots dset(int32_t x) { return _mm256_set1_epi32(x); }
inline Dots dadd(Dots a, Dots b) { return _mm256_add_epi32(a, b); }
// Sums one after the other: a compiler that shifts all of them first has not registers enough.
inline Dots dtimes255(Dots a) {
    __asm__ volatile("" : "+x"(a));
    Dots product = _mm256_sub_epi32(_mm256_slli_epi32(a, 8), a);
    __asm__ volatile("" : "+x"(product));
    return product;
}
inline Bytes dload(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Bytes dlow(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
inline Bytes dhigh(Bytes b) { return _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(15)); }
inline Bytes dor(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
inline Bytes dkeep(Bytes b, char bits) { return _mm256_and_si256(b, _mm256_set1_epi8(bits)); }
// Bits moved to the left, or if negative to the right; out of their bytes, too.
inline Bytes dmove(Bytes b, int left) { return left < 0 ? _mm256_srli_epi16(b, -left) : left ? _mm256_slli_epi16(b, left) : b; }
inline Vec dfloat(Dots d) { return _mm256_cvtepi32_ps(d); }
inline Vec dbits(Dots d) { return _mm256_castsi256_ps(d); } // the same bits
inline Vec vload_half(const char* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline void vstore_half(char* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The bits of a group's largest magnitude.
inline uint32_t dlargest(const Vec (&x)[4]) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i largest = _mm256_and_si256(_mm256_castps_si256(x[0]), magnitude);
    for (int v = 1; v < 4; ++v) largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(x[v]), magnitude));
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}
inline uint32_t dlargest(const uint16_t* x) {
    // What is missing to the largest number of bits: an instruction finds the least of eight.
    const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
    const __m256i first = _mm256_andnot_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)), magnitude);
    const __m256i second = _mm256_andnot_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x) + 1), magnitude);
    const __m256i half = _mm256_min_epu16(first, second);
    const __m128i eight = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (0x7FFFu - (static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(eight))) & 0xFFFFu)) << 16;
}
// The nearest whole numbers, ties to even, all from -127 to 127, as signed bytes; and the sums of both halves.
inline HalfSums dround_bytes(const Vec (&x)[4], char* p) {
    const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
    const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(x[2]), _mm256_cvtps_epi32(x[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); // packing works within halves
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bytes);
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i pairs = _mm256_hadd_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)); // two words each in turn
    __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xB1));
    return {_mm_cvtsi128_si32(sums), _mm_extract_epi32(sums, 2)};
}

using Fours = __m256i; // sums on their way to dots, to which those that there are may be added at the start or at the end
using Quad = __m256i;
using Quad8 = __m256i;
inline Quad dquad4(int32_t x) { return _mm256_set1_epi32(x); }
inline Quad8 dquad8(int32_t x) { return _mm256_set1_epi32(x); }

// Vectors of outputs that a tile of so many rows takes at once.
#ifdef OCTAVO_VNNI

constexpr int vecs_of(int64_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
constexpr const char* kMultiplyBytes = "vpdpbusd ymm";
using Eights = __m256i;
constexpr bool kShifted = true; // 8 bits are multiplied as value + 128
inline Fours ddot4(Fours acc, Bytes w, Quad x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
inline Fours dstart4(Dots before) { return before; }
inline Dots dend4(Dots, Fours sums) { return sums; }
inline Eights deights(Bytes w) { return w; }
inline Dots ddot8(Dots acc, Eights w, Quad8 x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }

#else

// Reading an activation costs as much as a product with it, so each meets two, though sums then have to leave their registers.
constexpr int vecs_of(int64_t rows) { return rows == 1 ? 4 : 2; }
constexpr const char* kMultiplyBytes = "vpmaddubsw ymm";
struct Eights {
    __m256i values, magnitudes;
};
constexpr bool kShifted = false;
// A sum that the compiler must have here: else it adds in another order, which takes more registers than there are.
inline __m256i dhere(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}
// Sums of as many as fit 16 bits, which those of a whole group of 4 bits do: 8 * 2 * 15 * 127.
inline Fours ddot4(Fours acc, Bytes w, Quad x) { return dhere(_mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x))); }
inline Fours dstart4(Dots) { return dzero(); }
inline Dots dend4(Dots before, Fours sums) { return dadd(before, _mm256_madd_epi16(sums, _mm256_set1_epi16(1))); }
inline Eights deights(Bytes w) {
    const __m256i values = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    return {values, _mm256_abs_epi8(values)};
}
// Magnitudes with the activations that bear the weights' signs: 2 * 128 * 127 fits 16 bits.
inline Dots ddot8(Dots acc, Eights w, Quad8 x) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(x, w.values));
    return dhere(_mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
}

#endif
