// Four floats in the compiler's own vector type: SSE2 on x86-64, NEON on ARM. Included inside the namespace of its user.

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t IntVec __attribute__((vector_size(16)));
typedef uint32_t WordVec __attribute__((vector_size(16)));
constexpr int W = 4;
constexpr const char* kMultiplyAdd = "multiply and add";
constexpr int kLinearRows = 4, kLinearVecs = 2;
constexpr bool kAloneAhead = false;
constexpr int64_t kWidenedInputs = 192; // of a block at once: the first-level cache holds them
constexpr int kAttentionRows = 4, kAttentionVecs = 2;

inline Vec vset(float x) { return Vec{x, x, x, x}; }
inline Vec vzero() { return vset(0.0f); }
inline Vec vload(const float* p) {
    Vec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
inline void vstore(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
inline void vstream(float* p, Vec v) { vstore(p, v); } // may pass the caches
inline void vstream_end() {}
inline Vec vload_n(const float* p, int64_t n) {
    Vec v = vzero();
    for (int64_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
}
inline void vstore_n(float* p, Vec v, int64_t n) {
    for (int64_t i = 0; i < n; ++i) p[i] = v[i];
}
inline Vec vadd(Vec a, Vec b) { return a + b; }
inline Vec vsub(Vec a, Vec b) { return a - b; }
inline Vec vmul(Vec a, Vec b) { return a * b; }
inline Vec vdiv(Vec a, Vec b) { return a / b; }
inline Vec vfma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec vmax(Vec a, Vec b) { return a > b ? a : b; } // the second where either is NaN
inline Vec vmin(Vec a, Vec b) { return a < b ? a : b; }
// To the nearest whole number, ties to even, for |a| < 2^22: adding 1.5 * 2^23 pushes the fraction out.
inline Vec vround(Vec a) {
    const Vec shift = vset(12582912.0f);
    return (a + shift) - shift;
}
inline float vsum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float vmax_of(Vec v) {
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
inline bool vany_above(Vec v, float x) { return v[0] > x || v[1] > x || v[2] > x || v[3] > x; }

// 2^n for whole n in [-126, 128], where it is infinite
inline Vec vpow2(Vec n) { return reinterpret_cast<Vec>((__builtin_convertvector(n, IntVec) + 127) << 23); }

// a where x >= y, else b (also where either is NaN)
inline Vec vselect_ge(Vec x, Vec y, Vec a, Vec b) { return x >= y ? a : b; }

// A bit for each lane: a is not below b (also where either is NaN)
inline uint32_t vnot_below(Vec a, Vec b) {
    const IntVec below = a < b;
    return ~static_cast<uint32_t>((below[0] & 1) | (below[1] & 2) | (below[2] & 4) | (below[3] & 8)) & 15;
}

// v in lanes [low, high), other elsewhere; bounds may lie outside the vector
inline Vec vkeep(Vec v, int low, int high, Vec other) {
    const IntVec lane = {0, 1, 2, 3};
    return ((lane >= low) & (lane < high)) ? v : other;
}

// a in lanes whose bit is set, b elsewhere: lane i has bit `first` + i of words of 32 bits; `first` is a multiple of W
inline Vec vselect_bits(const uint32_t* words, int64_t first, Vec a, Vec b) {
    const uint32_t bits = words[first / 32] >> (first % 32);
    const WordVec lane = {1, 2, 4, 8};
    return (lane & bits) != 0 ? a : b;
}

inline WordVec vload_words(const uint16_t* p) {
    WordVec v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
// W pairs of bf16: the first or the second of each (in little-endian words)
inline Vec vfirst(Vec pairs) { return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(pairs) << 16); }
inline Vec vsecond(Vec pairs) { return reinterpret_cast<Vec>(reinterpret_cast<WordVec>(pairs) & 0xFFFF0000u); }
inline Vec vfirst(const uint16_t* p) { return vfirst(reinterpret_cast<Vec>(vload_words(p))); }
inline Vec vsecond(const uint16_t* p) { return vsecond(reinterpret_cast<Vec>(vload_words(p))); }

inline Vec vload_bf16(const uint16_t* p) {
    WordVec v = {p[0], p[1], p[2], p[3]};
    return reinterpret_cast<Vec>(v << 16);
}

inline Vec vload_int8(const int8_t* p) {
    return Vec{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
}

// W pairs of whole numbers of 16 bits, from bytes, and W sums of products of such pairs, exact.
struct IntPairs {
    IntVec first, second;
};
using Ints = IntVec;
inline Ints izero() { return IntVec{0, 0, 0, 0}; }
inline IntPairs ipairs(const int8_t* p) { return {IntVec{p[0], p[2], p[4], p[6]}, IntVec{p[1], p[3], p[5], p[7]}}; }
inline void idot(Ints& acc, IntPairs w, IntPairs pair) { acc += w.first * pair.first + w.second * pair.second; }
inline IntPairs iset(int32_t pair) {
    const int32_t first = static_cast<int16_t>(pair), second = static_cast<int16_t>(static_cast<uint32_t>(pair) >> 16);
    return {IntVec{first, first, first, first}, IntVec{second, second, second, second}};
}
inline Vec ifloat(Ints v) { return __builtin_convertvector(v, Vec); }
// The larger ones, and the largest, of what is not below 0, NaN above all: by their bits.
inline Vec vmax_not_negative(Vec a, Vec b) { return reinterpret_cast<IntVec>(a) > reinterpret_cast<IntVec>(b) ? a : b; }
inline float vmax_of_not_negative(Vec v) {
    const IntVec bits = reinterpret_cast<IntVec>(v);
    int32_t most = bits[0];
    for (int i = 1; i < W; ++i) most = bits[i] > most ? bits[i] : most;
    return __builtin_bit_cast(float, most);
}
// Sixteen bytes to every other place, from `to` on; those between stay untouched.
inline void store_apart(int8_t* to, const int8_t* bytes) {
    for (int i = 0; i < 16; ++i) to[2 * i] = bytes[i];
}
// The nearest whole numbers, ties to even, all of which fit.
inline void vstore_int8(int8_t* p, Vec v) {
    const IntVec whole = __builtin_convertvector(vround(v), IntVec);
    for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(whole[i]);
}
inline void vstore_int16(int16_t* p, Vec v) {
    const IntVec whole = __builtin_convertvector(vround(v), IntVec);
    for (int i = 0; i < W; ++i) p[i] = static_cast<int16_t>(whole[i]);
}

// The loads above, from P pieces that follow one another, each at p[i] + at. No group is smaller than a vector.
template <int P> Vec vload(const float* const* p, int64_t at) = delete;
template <int P> Vec vfirst(const uint16_t* const* p, int64_t at) = delete;
template <int P> Vec vsecond(const uint16_t* const* p, int64_t at) = delete;
template <int P> IntPairs ipairs(const int8_t* const* p, int64_t at) = delete;

// Round to nearest even; NaN stays NaN.
inline void vstore_bf16(uint16_t* p, Vec v) {
    WordVec bits = reinterpret_cast<WordVec>(v);
    WordVec rounded = bits + ((bits >> 16) & 1) + 0x7FFF;
    WordVec result = ((v == v) ? rounded : (bits | 0x400000u)) >> 16;
    for (int i = 0; i < W; ++i) p[i] = static_cast<uint16_t>(result[i]);
}
