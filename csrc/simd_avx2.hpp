// Eight floats in an AVX register, with FMA. Included inside the instruction set's own namespace.

using Vec = __m256;
constexpr int W = 8;
constexpr const char* kMultiplyAdd = "vfmadd ymm";
constexpr int kLinearRows = 5, kLinearVecs = 2;
constexpr int kFixedRows = 6; // of whole numbers, which need a register less
constexpr bool kAloneAhead = true; // a tile that is alone fetches the next weights
constexpr int64_t kWidenedInputs = 192; // of a block at once: the first-level cache holds them
constexpr int kAttentionRows = 4, kAttentionVecs = 2;

inline Vec vzero() { return _mm256_setzero_ps(); }
inline Vec vset(float x) { return _mm256_set1_ps(x); }
inline Vec vload(const float* p) { return _mm256_loadu_ps(p); }
inline void vstore(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline void vstream(float* p, Vec v) { _mm256_stream_ps(p, v); } // past the caches; p is aligned
inline void vstream_end() { _mm_sfence(); }                       // other threads see what this one has streamed
inline __m256i vmask_n(int64_t n) {
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
inline Vec vload_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, vmask_n(n)); }
inline void vstore_n(float* p, Vec v, int64_t n) { _mm256_maskstore_ps(p, vmask_n(n), v); }
inline Vec vadd(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec vsub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec vmul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec vdiv(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec vfma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec vmax(Vec a, Vec b) { return _mm256_max_ps(a, b); } // the second where either is NaN
inline Vec vmin(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec vround(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

inline float vsum(Vec v) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float vmax_of(Vec v) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline bool vany_above(Vec v, float x) { return _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(x), _CMP_GT_OQ)) != 0; }

// 2^n for whole n in [-126, 128], where it is infinite
inline Vec vpow2(Vec n) {
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}

// a where x >= y, else b (also where either is NaN)
inline Vec vselect_ge(Vec x, Vec y, Vec a, Vec b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_GE_OQ)); }

// A bit for each lane: a is not below b (also where either is NaN)
inline uint32_t vnot_below(Vec a, Vec b) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ))); }

// v in lanes [low, high), other elsewhere; bounds may lie outside the vector
inline Vec vkeep(Vec v, int low, int high, Vec other) {
    const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane);
    __m256i keep = _mm256_andnot_si256(below, _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(keep));
}

// a in lanes whose bit is set, b elsewhere: lane i has bit `first` + i of words of 32 bits; `first` is a multiple of W
inline Vec vselect_bits(const uint32_t* words, int64_t first, Vec a, Vec b) {
    const __m256i lane = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    const __m256i bits = _mm256_set1_epi32(static_cast<int>(words[first / 32] >> (first % 32)));
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(bits, lane), lane);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(set));
}

// W pairs of bf16: the first or the second of each
inline Vec vfirst(Vec pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16)); }
inline Vec vsecond(Vec pairs) { return _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xFFFF0000u)))); }
inline Vec vfirst(const uint16_t* p) { return vfirst(vload(reinterpret_cast<const float*>(p))); }
inline Vec vsecond(const uint16_t* p) { return vsecond(vload(reinterpret_cast<const float*>(p))); }

inline Vec vload_bf16(const uint16_t* p) {
    __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

inline Vec vload_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// What the loads above read, from P pieces that follow one another, each at p[i] + at.
template <int P, class T> inline __m256i vjoin(const T* const* p, int64_t at) {
    static_assert(P == 2);
    const auto four = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p[i] + at)); };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(four(0)), four(1), 1);
}
template <int P> inline Vec vload(const float* const* p, int64_t at) { return _mm256_castsi256_ps(vjoin<P>(p, at)); }
template <int P> inline Vec vfirst(const uint16_t* const* p, int64_t at) { return vfirst(_mm256_castsi256_ps(vjoin<P>(p, at))); }
template <int P> inline Vec vsecond(const uint16_t* const* p, int64_t at) { return vsecond(_mm256_castsi256_ps(vjoin<P>(p, at))); }

// W pairs of whole numbers of 16 bits, from bytes, and W sums of products of such pairs, exact.
using IntPairs = __m256i;
using Ints = __m256i;
inline Ints izero() { return _mm256_setzero_si256(); }
inline IntPairs ipairs(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
template <int P> inline IntPairs ipairs(const int8_t* const* p, int64_t at) {
    static_assert(P == 2);
    const auto four = [&](int i) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p[i] + at)); };
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi64(four(0), four(1)));
}
// In the register where the sum is; see simd_avx512.hpp.
inline __attribute__((always_inline)) void idot(Ints& acc, IntPairs w, IntPairs pair) {
#ifdef OCTAVO_VNNI
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(pair));
#else
    __m256i products; // of one sum after the other: a compiler that made them first would need more registers than there are
    __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(products) : "x"(w), "x"(pair));
#endif
}
#ifdef OCTAVO_VNNI
constexpr const char* kMultiplyPairs = "vpdpwssd ymm";
#else
constexpr const char* kMultiplyPairs = "vpmaddwd ymm";
#endif
template <class T> inline IntPairs iload(const T* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
template <class T> inline void istore(T* p, IntPairs v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
inline IntPairs iset(int32_t pair) { return _mm256_set1_epi32(pair); }
inline Vec ifloat(Ints v) { return _mm256_cvtepi32_ps(v); }
// The larger ones, and the largest, of what is not below 0, NaN above all: by their bits.
inline Vec vmax_not_negative(Vec a, Vec b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
inline float vmax_of_not_negative(Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4E));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(most));
}
// Sixteen bytes to every other place, from `to` on; those between stay untouched.
inline void store_apart(int8_t* to, const int8_t* bytes) {
    for (int i = 0; i < 16; ++i) to[2 * i] = bytes[i];
}
// The nearest whole numbers, ties to even, all of which fit.
inline void vstore_int8(int8_t* p, Vec v) {
    const __m256i whole = _mm256_cvtps_epi32(v);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline void vstore_int16(int16_t* p, Vec v) {
    const __m256i whole = _mm256_cvtps_epi32(v);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole, whole), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// Round to nearest even; NaN stays NaN.
inline void vstore_bf16(uint16_t* p, Vec v) {
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    __m256i result = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(result, result), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
