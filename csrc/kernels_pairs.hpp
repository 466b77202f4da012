// What a pair of groups of integer weights adds to the sums of a tile of rows, where kGroupPairs says that an instruction set has them;
// see integer.hpp. Included inside its own namespace, after kernels_dots.hpp.
//
// A dot of 32 products of 4 bits and 8 fits 16 bits. Those of both groups come to lie in one vector, the second one's above, and are
// multiplied by their scales and added at once. So are their minimums. What comes of it is exact in 32 bits.

inline Dots dwords(const char* p) {
    Dots words;
    __builtin_memcpy(&words, p, sizeof words);
    return words;
}

// Dots of rows that begin at the words at x, so far apart.
template <int R, int V> inline __attribute__((always_inline)) void start_dots(Dots (&dots)[R][V], const char* x, int64_t stride) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Dots start = dset(word_at(x + r * stride));
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) dots[r][v] = start;
    }
}

// Adds a pair's products of R rows and V vectors of outputs; x and `w` are those of the first group, `scales` the pair's of the first
// vector. between() is called between the groups.
template <int R, int V, class Acc, class Call>
inline __attribute__((always_inline)) void accumulate_pair(Acc& acc, const char* x, const char* w, const char* scales, const Call& between) {
    constexpr int kStride = record_bytes(4, 1), kStep = R * kStride;
    Dots dots[R][V];
    if constexpr (R * V <= kDotsOfLevels) {
        Dots above[R][V];
        start_dots(dots, x + kGroup, kStride);
        start_dots(above, x + kStep + kGroup, kStride);
        dot_bytes4<kStride, 0, false>(dots, x, w);
        between();
        dot_bytes4<kStride, 0, false>(above, x + kStep, w + kLinesOfFour);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = dabove(above[r][v], dots[r][v]);
        }
    } else {
        start_dots(dots, x + kStep + kGroup, kStride);
        dot_bytes4<kStride, 0, false>(dots, x + kStep, w + kLinesOfFour);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Dots start = dset(word_at(x + r * kStride + kGroup));
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = dabove(dots[r][v], start);
        }
        between();
        x = anew(x);
        dot_bytes4<kStride, 0, false>(dots, x, w);
    }
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        const Dots scale = dwords(scales + v * W * 4), minimum = dwords(scales + kIntegerColumns * 4 + v * W * 4);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const char* record = x + r * kStride + kGroup + 4;
            const Dots minimums = dproducts(minimum, dset(word_at(record + kStep)));
            const Dots sum = dadd_products(minimums, dflip(dots[r][v]), dtimes(scale, dset(word_at(record))));
            acc.put(r, v, vadd(dfloat(sum), acc.get(r, v)));
        }
    }
}

// Sums in units of their outputs and rows become what they are.
template <int R, int V, class Acc> inline __attribute__((always_inline)) void scale_pairs(Acc& acc, const char* of_outputs, const char* of_rows) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        const Vec outputs = vload(reinterpret_cast<const float*>(of_outputs) + v * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc.put(r, v, vmul(vmul(acc.get(r, v), outputs), vset(float_at(of_rows + r * 4))));
    }
}
