// Eight dots of four unsigned weights with four signed activations. With VNNI one instruction; without, products of the even
// and of the odd bytes, which never saturate. Included inside the instruction set's own namespace.

using Dots = __m256i;
using Bytes = __m256i;
constexpr int kIntegerRows = 4, kIntegerVecs = 1;
constexpr int kIntegerPrefetch = 4; // groups ahead in the stream of weights

inline Dots dzero() { return _mm256_setzero_si256(); }
inline Dots dset(int32_t x) { return _mm256_set1_epi32(x); }
inline Bytes dload(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Bytes dlow(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
inline Bytes dhigh(Bytes b) { return _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(15)); }
inline Vec dfloat(Dots d) { return _mm256_cvtepi32_ps(d); }
inline Vec vload_half(const char* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline void vstore_half(char* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#ifdef OCTAVO_VNNI

using Quad = __m256i;
inline Quad dquad(int32_t x) { return _mm256_set1_epi32(x); }
inline Dots ddot4(Dots acc, Bytes w, Quad x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }
inline Dots ddot8(Dots acc, Bytes w, Quad x) { return _mm256_dpbusd_avx_epi32(acc, w, x); }

#else

struct Quad {
    __m256i all, even, odd;
};
inline Quad dquad(int32_t x) {
    __m256i all = _mm256_set1_epi32(x);
    return {all, _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), _mm256_srai_epi16(all, 8)};
}
// 2 * 15 * 127 fits 16 bits.
inline Dots ddot4(Dots acc, Bytes w, Quad x) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x.all), _mm256_set1_epi16(1)));
}
inline Dots ddot8(Dots acc, Bytes w, Quad x) {
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)), x.even);
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), x.odd);
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}

#endif
