// Sixteen floats in an AVX-512 register. Included inside the instruction set's own namespace.

using Vec = __m512;
constexpr int W = 16;
constexpr const char* kMultiplyAdd = "vfmadd zmm";
constexpr int kLinearRows = 12, kLinearVecs = 2; // register tile of linear: rows x vectors of columns
constexpr int kFixedRows = 12;                   // of one of whole numbers, where several meet the same weights
constexpr bool kAloneAhead = false;
constexpr int64_t kWidenedInputs = 2048; // of a block at once: the second-level cache holds them
constexpr int kAttentionRows = 6, kAttentionVecs = 4;

inline Vec vzero() { return _mm512_setzero_ps(); }
inline Vec vset(float x) { return _mm512_set1_ps(x); }
inline Vec vload(const float* p) { return _mm512_loadu_ps(p); }
inline void vstore(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline void vstream(float* p, Vec v) { _mm512_stream_ps(p, v); } // past the caches; p is aligned
inline void vstream_end() { _mm_sfence(); }                       // other threads see what this one has streamed
inline Vec vload_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p); }
inline void vstore_n(float* p, Vec v, int64_t n) { _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v); }
inline Vec vadd(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec vsub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec vmul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec vdiv(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec vfma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec vmax(Vec a, Vec b) { return _mm512_max_ps(a, b); } // the second where either is NaN
inline Vec vmin(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec vround(Vec a) { return _mm512_roundscale_ps(a, 8); }
inline float vsum(Vec v) { return _mm512_reduce_add_ps(v); }
inline float vmax_of(Vec v) { return _mm512_reduce_max_ps(v); }
inline bool vany_above(Vec v, float x) { return _mm512_cmp_ps_mask(v, _mm512_set1_ps(x), _CMP_GT_OQ) != 0; }

// 2^n for whole n in [-126, 128], where it is infinite
inline Vec vpow2(Vec n) {
    __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}

#define OCTAVO_POW2_NEAR
// 2^x within 2^-13 of itself, far more exact than bf16, or within 2^-18, than whole numbers of 16 bits; 0 far below, NaN of NaN.
template <bool kNearer> inline Vec vpow2_near(Vec x) {
    const Vec y = vmax(vset(-200.0f), x), part = _mm512_reduce_ps(y, 1); // what is above the next whole number below
    Vec p = vset(kNearer ? 0.013426685f : 0.077067058f);
    if (kNearer) p = vfma(p, part, vset(0.052242473f));
    p = vfma(p, part, vset(kNearer ? 0.2412802f : 0.22764498f));
    p = vfma(p, part, vset(kNearer ? 0.69304484f : 0.69511679f));
    p = vfma(p, part, vset(1.0f));
    return _mm512_scalef_ps(p, y);
}

// a where x >= y, else b (also where either is NaN)
inline Vec vselect_ge(Vec x, Vec y, Vec a, Vec b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GE_OQ), b, a);
}

// A bit for each lane: a is not below b (also where either is NaN)
inline uint32_t vnot_below(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }

// v in lanes [low, high), other elsewhere; bounds may lie outside the vector
inline Vec vkeep(Vec v, int low, int high, Vec other) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __mmask16 keep = _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(low), _MM_CMPINT_NLT) &
                     _mm512_cmp_epi32_mask(lane, _mm512_set1_epi32(high), _MM_CMPINT_LT);
    return _mm512_mask_blend_ps(keep, other, v);
}

// a in lanes whose bit is set, b elsewhere: lane i has bit `first` + i of words of 32 bits; `first` is a multiple of W
inline Vec vselect_bits(const uint32_t* words, int64_t first, Vec a, Vec b) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(words[first / 32] >> (first % 32)), b, a);
}

// W pairs of bf16: the first or the second of each
inline Vec vfirst(Vec pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16)); }
inline Vec vsecond(Vec pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}
inline Vec vfirst(const uint16_t* p) { return vfirst(_mm512_castsi512_ps(_mm512_loadu_si512(p))); }
inline Vec vsecond(const uint16_t* p) { return vsecond(_mm512_castsi512_ps(_mm512_loadu_si512(p))); }

inline Vec vload_bf16(const uint16_t* p) {
    __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline Vec vload_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

// What the loads above read, from P pieces that follow one another, each at p[i] + at.
template <int P, class T> inline __m512i vjoin(const T* const* p, int64_t at) {
    const auto four = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p[i] + at)); };
    const auto eight = [&](int i) {
        if constexpr (P == 2) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p[i] + at));
        else return _mm256_inserti128_si256(_mm256_castsi128_si256(four(2 * i)), four(2 * i + 1), 1);
    };
    static_assert(P == 2 || P == 4);
    return _mm512_inserti64x4(_mm512_castsi256_si512(eight(0)), eight(1), 1);
}
template <int P> inline Vec vload(const float* const* p, int64_t at) { return _mm512_castsi512_ps(vjoin<P>(p, at)); }
template <int P> inline Vec vfirst(const uint16_t* const* p, int64_t at) { return vfirst(_mm512_castsi512_ps(vjoin<P>(p, at))); }
template <int P> inline Vec vsecond(const uint16_t* const* p, int64_t at) { return vsecond(_mm512_castsi512_ps(vjoin<P>(p, at))); }

// W pairs of whole numbers of 16 bits, from bytes, and W sums of products of such pairs, exact.
using IntPairs = __m512i;
using Ints = __m512i;
inline Ints izero() { return _mm512_setzero_si512(); }
inline IntPairs ipairs(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
template <int P> inline IntPairs ipairs(const int8_t* const* p, int64_t at) {
    const auto four = [&](int i) {
        const auto* from = reinterpret_cast<const __m128i*>(p[P == 2 ? i : 2 * i] + at);
        if constexpr (P == 2) return _mm_loadu_si128(from);
        else return _mm_unpacklo_epi64(_mm_loadl_epi64(from), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p[2 * i + 1] + at)));
    };
    static_assert(P == 2 || P == 4);
    return _mm512_cvtepi8_epi16(_mm256_inserti128_si256(_mm256_castsi128_si256(four(0)), four(1), 1));
}
// In the register where the sum is: where there are many, a compiler that sees the instruction itself moves them about.
inline __attribute__((always_inline)) void idot(Ints& acc, IntPairs w, IntPairs pair) {
#ifdef OCTAVO_VNNI
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(pair));
#else
    __m512i products; // of one sum after the other
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(acc), "=&v"(products) : "v"(w), "v"(pair));
#endif
}
#ifdef OCTAVO_VNNI
constexpr const char* kMultiplyPairs = "vpdpwssd zmm";
#else
constexpr const char* kMultiplyPairs = "vpmaddwd zmm";
#endif
template <class T> inline IntPairs iload(const T* p) { return _mm512_loadu_si512(p); }
template <class T> inline void istore(T* p, IntPairs v) { _mm512_storeu_si512(p, v); }
inline IntPairs iset(int32_t pair) { return _mm512_set1_epi32(pair); }
inline Vec ifloat(Ints v) { return _mm512_cvtepi32_ps(v); }
// The larger ones, and the largest, of what is not below 0, NaN above all: by their bits.
inline Vec vmax_not_negative(Vec a, Vec b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
inline float vmax_of_not_negative(Vec v) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(_mm512_castps_si512(v)))));
}
// Sixteen bytes to every other place, from `to` on; those between stay untouched.
inline void store_apart(int8_t* to, const int8_t* bytes) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    _mm256_mask_storeu_epi8(to, 0x55555555u, wide);
}
// The nearest whole numbers, ties to even, all of which fit.
inline void vstore_int8(int8_t* p, Vec v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))); }
inline void vstore_int16(int16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
}

// Round to nearest even; NaN stays NaN.
inline void vstore_bf16(uint16_t* p, Vec v) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v)); // denormals are zero, as everywhere
#else
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __m512i result = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), rounded, quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
#endif
}
