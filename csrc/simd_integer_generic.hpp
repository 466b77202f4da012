// Four dots of four unsigned weights with four signed activations, in the compiler's own vectors (little-endian words).
// Included inside the namespace of its user.

typedef int16_t ShortVec __attribute__((vector_size(16)));
using Dots = IntVec;
using Bytes = WordVec;
constexpr int kIntegerRows = 4, kDotsOfLevels = 0, kRowsAlone = 4, kRowsAloneEight = 4, kRowsAtMemory = 0;
constexpr bool kFused = false; // vfma rounds once
#define OCTAVO_GROUP_PAIRS
constexpr bool kGroupPairs = true; // weights of 4 bits in pairs of groups, too
// Vectors of outputs that a tile of so many rows takes at once.
constexpr int vecs_of(int64_t) { return 1; }

inline Dots dset(int32_t x) { return Dots{x, x, x, x}; }
inline Dots dzero() { return dset(0); }
inline Dots dadd(Dots a, Dots b) { return a + b; }
inline Dots dtimes255(Dots a) { return a * 255; }
// Two numbers of 16 bits each: a dot above another one; with the lower ones' sign bits flipped; rounded products over 2^15; and the
// sums of two products.
inline Dots dabove(Dots high, Dots low) { return reinterpret_cast<Dots>(reinterpret_cast<WordVec>(high) << 16) + low; }
inline Dots dflip(Dots pair) { return pair ^ dset(kFlipped); }
inline Dots dtimes(Dots a, Dots b) {
    const Dots low = (((a << 16) >> 16) * ((b << 16) >> 16) + 0x4000) >> 15, high = ((a >> 16) * (b >> 16) + 0x4000) >> 15;
    return (high << 16) | (low & 0xFFFF);
}
inline Dots dproducts(Dots a, Dots b) { return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16); }
inline Dots dadd_products(Dots acc, Dots a, Dots b) { return acc + dproducts(a, b); }
inline Bytes dload(const char* p) {
    Bytes b;
    __builtin_memcpy(&b, p, sizeof b);
    return b;
}
inline Bytes dlow(Bytes b) { return b & 0x0F0F0F0Fu; }
inline Bytes dhigh(Bytes b) { return (b >> 4) & 0x0F0F0F0Fu; }
inline Bytes dor(Bytes a, Bytes b) { return a | b; }
inline Bytes dkeep(Bytes b, uint8_t bits) { return b & 0x01010101u * bits; }
// Bits moved to the left, or if negative to the right; out of their bytes, too.
inline Bytes dmove(Bytes b, int left) { return left < 0 ? b >> -left : b << left; }
inline Vec dfloat(Dots d) { return __builtin_convertvector(d, Vec); }
inline Vec dbits(Dots d) { return reinterpret_cast<Vec>(d); } // the same bits
inline Vec vload_half(const char* p) {
    return Vec{half_to_float(p), half_to_float(p + 2), half_to_float(p + 4), half_to_float(p + 6)};
}
inline void vstore_half(char* p, Vec v) {
    for (int i = 0; i < W; ++i) {
        const uint16_t half = float_to_half(v[i]);
        __builtin_memcpy(p + 2 * i, &half, sizeof half);
    }
}

// The bits of a group's largest magnitude.
inline uint32_t dlargest(const Vec (&x)[8]) {
    WordVec largest{};
    for (const Vec& v : x) {
        const WordVec magnitude = reinterpret_cast<WordVec>(v) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    const uint32_t first = largest[0] > largest[1] ? largest[0] : largest[1], second = largest[2] > largest[3] ? largest[2] : largest[3];
    return first > second ? first : second;
}
inline uint32_t dlargest(const uint16_t* x) {
    Vec values[8];
    for (int v = 0; v < 8; ++v) values[v] = vload_bf16(x + v * W);
    return dlargest(values);
}
// The nearest whole numbers, ties to even, all from -127 to 127, as signed bytes; and the sums of both halves.
inline HalfSums dround_bytes(const Vec (&x)[8], char* p) {
    IntVec totals[2]{};
    for (int v = 0; v < 8; ++v) {
        const IntVec whole = __builtin_convertvector(vround(x[v]), IntVec);
        for (int i = 0; i < W; ++i) p[v * W + i] = static_cast<char>(whole[i]);
        totals[v / 4] += whole;
    }
    const auto sum = [](IntVec total) { return (total[0] + total[1]) + (total[2] + total[3]); };
    return {sum(totals[0]), sum(totals[1])};
}

constexpr const char* kMultiplyBytes = "16-bit multiply";
using Fours = Dots;
using Eights = Bytes;
constexpr bool kShifted = true; // 8 bits are multiplied as value + 128
struct Quad {
    ShortVec even, odd;
};
using Quad8 = Quad;
inline Quad8 dquad8(int32_t x) {
    ShortVec all = reinterpret_cast<ShortVec>(dset(x));
    return {(all << 8) >> 8, all >> 8};
}
inline Quad dquad4(int32_t x) { return dquad8(x); }
// The sum of each pair of products, 255 * 127 at most, which fits 16 bits.
inline Dots dpairs(ShortVec w, ShortVec x) {
    Dots products = reinterpret_cast<Dots>(w * x);
    return ((products << 16) >> 16) + (products >> 16);
}
inline Eights deights(Bytes w) { return w; }
inline Dots ddot8(Dots acc, Eights w, Quad8 x) {
    ShortVec even = reinterpret_cast<ShortVec>(w & 0x00FF00FFu), odd = reinterpret_cast<ShortVec>((w >> 8) & 0x00FF00FFu);
    return acc + dpairs(even, x.even) + dpairs(odd, x.odd);
}
inline Fours ddot4(Fours acc, Bytes w, Quad x) { return ddot8(acc, w, x); }
inline Fours dstart4(Dots before) { return before; }
inline Dots dend4(Dots, Fours sums) { return sums; }
