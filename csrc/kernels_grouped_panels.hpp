// Products of weights in groups without tile instructions; see kernels_grouped.hpp, which is included before.
//
// A few rows multiply the numbers in the registers where they come to be. For more, a panel, a few groups of a block, becomes
// plain numbers in the first-level cache, and all rows meet it there. Sums wait in memory for the next panel. Each is taken up
// where it was left, so the bits do not depend on panels.

constexpr int64_t kPanelGroups = 6;   // 12 KB of numbers
constexpr int64_t kGroupsAhead = 12;  // in the stream of weights: into the first-level cache
constexpr int64_t kRowsAtOnce = 256;  // whose sums wait
constexpr int kRowsInRegisters = W < 16 ? 2 : 8;

// Asks for a group further on.
template <bool kFour> inline __attribute__((always_inline)) void fetch_group(const char* group) {
    for (int64_t at = 0; at < kBytesOfGroup<kFour>; at += kLine) __builtin_prefetch(group + kGroupsAhead * kBytesOfGroup<kFour> + at);
}

// acc[r][v] += the pair of inputs at k of each row times that of the weights.
template <int R, int V>
inline __attribute__((always_inline)) void accumulate_numbers(Vec (&acc)[R][V], const Input* const (&x)[R], int64_t k,
                                                              const Pairs (&w)[V]) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#ifdef OCTAVO_DOT_BF16
        const int32_t pair = pair_at(x[r] + k);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = vdot(acc[r][v], pair, w[v]);
#else
        const Vec even = vset(x[r][k]), odd = vset(x[r][k + 1]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = vfma(odd, w[v].odd, vfma(even, w[v].even, acc[r][v]));
#endif
    }
}

// The products of some rows with all inputs of a block.
template <int R, bool kFour>
__attribute__((noinline)) void tile_in_registers(const LinearArgs& a, int64_t row, int64_t block) {
    constexpr int V = kLinearVecs, kSpan = W * V, kLines = kLinesOfHalf<kFour>;
    static_assert(V == 2); // scales
    const Input* x[R];
    for (int r = 0; r < R; ++r) x[r] = static_cast<const Input*>(a.x) + (row + r) * a.x_stride;
    for (int column = 0; column < kColumnBlock; column += kSpan) {
        const char* group = static_cast<const char*>(a.weight) + block * (a.k / kGroup) * kBytesOfGroup<kFour>;
        Vec acc[R][V];
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) acc[r][v] = vzero();
        }
        for (int64_t k = 0; k < a.k; k += kGroup, group += kBytesOfGroup<kFour>) {
            if (column == 0) fetch_group<kFour>(group);
            const char* scales = group + 2 * kLines * kLine + column * 2;
            const GroupScales<kFour> own[V] = {GroupScales<kFour>(scales), GroupScales<kFour>(scales + W * 2)};
            const auto multiply = [&]<bool kHigh>() __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (int line = 0; line < kLines; ++line) {
                    Pairs pairs[2][V];
#pragma GCC unroll 2
                    for (int v = 0; v < V; ++v) {
                        const int at = column + v * W;
                        Pairs both[2];
                        unpack<kFour, kHigh>(load_words(group + (at / 16 * kLines + line) * kLine + at % 16 * 4), own[v], both);
                        pairs[0][v] = both[0];
                        pairs[1][v] = both[1];
                    }
                    const int64_t input = k + (kHigh ? kGroup / 2 : 0) + line * 4;
                    for (int i = 0; i < 2; ++i) accumulate_numbers<R, V>(acc, x, input + i * 2, pairs[i]);
                }
            };
            multiply.template operator()<false>();
            if constexpr (kFour) multiply.template operator()<true>();
        }
        int64_t columns[V];
        for (int v = 0; v < V; ++v) columns[v] = block * kColumnBlock + column + v * W;
        store_tile(a, row, columns, acc);
    }
}

// Groups [group0, group1) of a block as plain numbers.
struct GroupedPanel {
    const uint16_t* numbers;
    int64_t block, group0, group1;
};

// Adds the products of R rows with a panel to their sums, [row][column]; those of the last panel go out.
template <int R>
__attribute__((noinline)) void tile_grouped(const LinearArgs& a, const GroupedPanel& panel, int64_t row, float* sums) {
    constexpr int V = kLinearVecs, kSpan = W * V;
    const bool first = panel.group0 == 0, last = panel.group1 * kGroup == a.k;
    const Input* x[R];
    for (int r = 0; r < R; ++r) x[r] = static_cast<const Input*>(a.x) + (row + r) * a.x_stride + panel.group0 * kGroup;
    for (int column = 0; column < kColumnBlock; column += kSpan) {
        const uint16_t* w[V];
        for (int v = 0; v < V; ++v) w[v] = panel.numbers + (column + v * W) / 16 * kTileElements + (column + v * W) % 16 * 2;
        Vec acc[R][V];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) acc[r][v] = first ? vzero() : vload(sums + r * kColumnBlock + column + v * W);
        }
        for (int64_t k = 0; k < (panel.group1 - panel.group0) * kGroup; k += kDepthStep) {
            for (int64_t i = 0; i < kDepthStep; i += 2) accumulate_pair<R, V>(acc, x, k + i, w, k * kColumnBlock + i * 16);
        }
        if (last) {
            int64_t columns[V];
            for (int v = 0; v < V; ++v) columns[v] = panel.block * kColumnBlock + column + v * W;
            store_tile(a, row, columns, acc);
            continue;
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) vstore(sums + r * kColumnBlock + column + v * W, acc[r][v]);
        }
    }
}

typedef void (*GroupedTile)(const LinearArgs&, const GroupedPanel&, int64_t row, float* sums);

struct GroupedTiles {
    GroupedTile of[kLinearRows + 1]{};
    template <int R> constexpr void fill() {
        if constexpr (R > 0) {
            of[R] = tile_grouped<R>;
            fill<R - 1>();
        }
    }
    constexpr GroupedTiles() { fill<kLinearRows>(); }
};

constexpr GroupedTiles kGroupedTiles;

template <bool kFour> void multiply_panels(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block) {
    alignas(64) float sums[kRowsAtOnce * kColumnBlock];
    alignas(64) uint16_t numbers[kPanelGroups * 2 * kTileElements];
    const int64_t groups = a.k / kGroup, tiles = (row1 - row0 + kLinearRows - 1) / kLinearRows;
    const char* group = static_cast<const char*>(a.weight) + block * groups * kBytesOfGroup<kFour>;
    for (int64_t group0 = 0; group0 < groups; group0 += kPanelGroups) {
        const GroupedPanel panel{numbers, block, group0, min64(groups, group0 + kPanelGroups)};
        uint16_t* to = numbers;
        for (int64_t g = panel.group0; g < panel.group1; ++g, group += kBytesOfGroup<kFour>, to += 2 * kTileElements) {
            fetch_group<kFour>(group);
            dequantize_group<kFour>(group, to);
        }
        for (int64_t t = 0, row = row0; t < tiles; ++t) {
            const int64_t size = (row1 - row) / (tiles - t); // nearly equal
            kGroupedTiles.of[size](a, panel, row, sums + (row - row0) * kColumnBlock);
            row += size;
        }
    }
}

template <bool kFour, int R = 1> void multiply_few(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block) {
    if constexpr (R < kRowsInRegisters) {
        if (row1 - row0 > R) return multiply_few<kFour, R + 1>(a, row0, row1, block);
    }
    tile_in_registers<R, kFour>(a, row0, block);
}

void linear_grouped(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    const bool four = a.group_bits == 4, few = row1 - row0 <= kRowsInRegisters;
    const auto multiply = four ? (few ? multiply_few<true> : multiply_panels<true>)
                               : (few ? multiply_few<false> : multiply_panels<false>);
    for (int64_t row = row0; row < row1; row += kRowsAtOnce) {
        for (int64_t block = block0; block < block1; ++block) multiply(a, row, min64(row1, row + kRowsAtOnce), block);
    }
    if (a.past_caches) vstream_end();
}
