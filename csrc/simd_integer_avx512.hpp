// Sixteen dots of four unsigned weights with four signed activations, exact. With VNNI one instruction; without, products that
// never saturate. Included inside the instruction set's own namespace.

using Dots = __m512i;
using Bytes = __m512i;
constexpr int kIntegerRows = 6;
constexpr int kDotsOfLevels = 8; // vectors of them, as many of each level, leave registers for the rest
#ifdef OCTAVO_VNNI
constexpr int kRowsAlone = 12, kRowsAloneEight = 10, kRowsAtMemory = 4;
#else
constexpr int kRowsAlone = kIntegerRows, kRowsAloneEight = kIntegerRows, kRowsAtMemory = 0; // a dot takes registers of its own
#endif
constexpr bool kFused = true; // vfma rounds once
#define OCTAVO_GROUP_PAIRS
constexpr bool kGroupPairs = true; // weights of 4 bits in pairs of groups, too
// Vectors of outputs that a tile of so many rows takes at once.
constexpr int vecs_of(int64_t) { return 2; }

inline Dots dzero() { return _mm512_setzero_si512(); }
inline Dots dset(int32_t x) { return _mm512_set1_epi32(x); }
inline Dots dadd(Dots a, Dots b) { return _mm512_add_epi32(a, b); }
// Sums one after the other: a compiler that shifts all of them first has not registers enough.
inline Dots dtimes255(Dots a) {
    __asm__ volatile("" : "+v"(a));
    Dots product = _mm512_sub_epi32(_mm512_slli_epi32(a, 8), a);
    __asm__ volatile("" : "+v"(product));
    return product;
}
// Two numbers of 16 bits each: a dot above another one; with the lower ones' sign bits flipped; rounded products over 2^15; and the
// sums of two products.
inline Dots dabove(Dots high, Dots low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 16), low); }
inline Dots dflip(Dots pair) { return _mm512_xor_si512(pair, _mm512_set1_epi32(kFlipped)); }
inline Dots dtimes(Dots a, Dots b) { return _mm512_mulhrs_epi16(a, b); }
inline Dots dproducts(Dots a, Dots b) { return _mm512_madd_epi16(a, b); }
inline Bytes dload(const char* p) { return _mm512_loadu_si512(p); }
inline Bytes dlow(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline Bytes dhigh(Bytes b) { return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15)); }
inline Bytes dor(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
inline Bytes dkeep(Bytes b, char bits) { return _mm512_and_si512(b, _mm512_set1_epi8(bits)); }
// Bits moved to the left, or if negative to the right; out of their bytes, too.
inline Bytes dmove(Bytes b, int left) { return left < 0 ? _mm512_srli_epi16(b, -left) : left ? _mm512_slli_epi16(b, left) : b; }
inline Vec dfloat(Dots d) { return _mm512_cvtepi32_ps(d); }
inline Vec dbits(Dots d) { return _mm512_castsi512_ps(d); } // the same bits
inline Vec vload_half(const char* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline void vstore_half(char* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// The bits of a group's largest magnitude.
inline uint32_t dlargest(const Vec (&x)[2]) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    const __m512i a = _mm512_and_si512(_mm512_castps_si512(x[0]), magnitude);
    const __m512i b = _mm512_and_si512(_mm512_castps_si512(x[1]), magnitude);
    return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)));
}
inline uint32_t dlargest(const uint16_t* x) {
    // What is missing to the largest number of bits: an instruction finds the least of eight.
    const __m512i missing = _mm512_andnot_si512(_mm512_loadu_si512(x), _mm512_set1_epi16(0x7FFF));
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(missing), _mm512_extracti64x4_epi64(missing, 1));
    const __m128i eight = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return (0x7FFFu - (static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(eight))) & 0xFFFFu)) << 16;
}
// The nearest whole numbers, ties to even, all from -127 to 127, as signed bytes; and the sums of both halves.
inline HalfSums dround_bytes(const Vec (&x)[2], char* p) {
    int32_t sums[2];
    for (int v = 0; v < 2; ++v) {
        const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x[v]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p) + v, bytes);
        const __m128i parts = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128()); // of eight, + 128 each
        sums[v] = _mm_cvtsi128_si32(parts) + _mm_extract_epi32(parts, 2) - 16 * 128;
    }
    return {sums[0], sums[1]};
}

using Fours = __m512i; // sums on their way to dots, to which those that there are may be added at the start or at the end
using Quad = __m512i;
using Eights = __m512i;
constexpr bool kShifted = true; // 8 bits are multiplied as value + 128
inline Quad dquad4(int32_t x) { return _mm512_set1_epi32(x); }
inline Eights deights(Bytes w) { return w; }

#ifdef OCTAVO_VNNI

constexpr const char* kMultiplyBytes = "vpdpbusd zmm";
using Quad8 = __m512i;
inline Quad8 dquad8(int32_t x) { return _mm512_set1_epi32(x); }
inline Fours ddot4(Fours acc, Bytes w, Quad x) { return _mm512_dpbusd_epi32(acc, w, x); }
inline Fours dstart4(Dots before) { return before; }
inline Dots dend4(Dots, Fours sums) { return sums; }
inline Dots ddot8(Dots acc, Eights w, Quad8 x) { return _mm512_dpbusd_epi32(acc, w, x); }
inline Dots dadd_products(Dots acc, Dots a, Dots b) { return _mm512_dpwssd_epi32(acc, a, b); }

#else

constexpr const char* kMultiplyBytes = "vpmaddwd zmm";
inline Dots dadd_products(Dots acc, Dots a, Dots b) { return dadd(acc, dproducts(a, b)); }

// A sum that the compiler must have here: else it adds in another order, which takes more registers than there are.
inline __m512i dhere(__m512i sum) {
    __asm__("" : "+v"(sum));
    return sum;
}
struct Quad8 {
    __m512i even, odd;
};
inline Quad8 dquad8(int32_t x) {
    const __m512i all = _mm512_set1_epi32(x);
    return {_mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8), _mm512_srai_epi16(all, 8)};
}
// Sums of as many as fit 16 bits, which those of a whole group of 4 bits do: 8 * 2 * 15 * 127.
inline Fours ddot4(Fours acc, Bytes w, Quad x) { return dhere(_mm512_add_epi16(acc, _mm512_maddubs_epi16(w, x))); }
inline Fours dstart4(Dots) { return dzero(); }
inline Dots dend4(Dots before, Fours sums) { return dadd(before, _mm512_madd_epi16(sums, _mm512_set1_epi16(1))); }
inline Dots ddot8(Dots acc, Eights w, Quad8 x) {
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)), x.even);
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), x.odd);
    return dhere(_mm512_add_epi32(acc, _mm512_add_epi32(even, odd)));
}

#endif
