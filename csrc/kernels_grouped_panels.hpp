// Products of weights in groups without tile instructions; see kernels_grouped.hpp, which is included before.
//
// A few rows multiply the numbers in the registers where they come to be. For more, a panel, a few groups of a block, becomes
// plain numbers in the first-level cache, where all rows meet it, or all but those that made it. Sums wait in memory for the next
// panel. Each is taken up where it was left, so the bits do not depend on panels.

constexpr int64_t kPanelGroups = 6;   // 12 KB of numbers
constexpr int64_t kGroupsAhead = 12;  // in the stream of weights: with 4 bits into the first-level cache, with 8 into the second
constexpr int64_t kRowsAtOnce = 256;  // whose sums wait
// Rows that multiply numbers where they come to be. With registers for a whole tile, so does the first of several tiles, and
// making numbers, which other units of the processor do, and multiplying overlap.
constexpr bool kFirstInRegisters = W >= 16;
constexpr int kRowsInRegisters = kFirstInRegisters ? kLinearRows : 2;
constexpr int vecs_in_registers(int rows) { return W >= 16 && rows > 2 ? 1 : kLinearVecs; } // one chain of sums is slow

// Asks for a group further on; each pass over some columns for its share.
template <int kBits, int kSpan> inline __attribute__((always_inline)) void fetch_group(const char* group, int column) {
    constexpr int64_t kBytes = group_bytes(kBits), kShare = (kBytes * kSpan / kColumnBlock + kLine - 1) / kLine * kLine;
    const char* from = group + kGroupsAhead * kBytes + column / kSpan * kShare;
#pragma GCC unroll 32
    for (int64_t at = 0; at < kShare; at += kLine) __builtin_prefetch(from + at, 0, kBits == 4 ? 3 : 2);
}

// acc[r][v] += the pair of inputs at k of each row times that of the weights.
template <int R, int V>
inline __attribute__((always_inline)) void accumulate_numbers(Vec (&acc)[R][V], const Input* const (&x)[R], int64_t k,
                                                              const Pairs (&w)[V]) {
#pragma GCC unroll 16
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

// Groups [group0, group1) of a block, and where they lie as plain numbers.
struct GroupedPanel {
    const char* groups;
    uint16_t* numbers;
    int64_t block, group0, group1;
};

// Sums of a tile's rows wait for the next panel in memory, [row][column of the block].
template <int R, int V>
inline __attribute__((always_inline)) void take_up(Vec (&acc)[R][V], const GroupedPanel& panel, const float* sums, int column) {
    const bool first = panel.group0 == 0;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) acc[r][v] = first ? vzero() : vload(sums + r * kColumnBlock + column + v * W);
    }
}

// Those of the last panel go out.
template <int R, int V>
inline __attribute__((always_inline)) void put_down(const LinearArgs& a, int64_t row, const GroupedPanel& panel, float* sums,
                                                    int column, const Vec (&acc)[R][V]) {
    if (panel.group1 * kGroup == a.k) {
        int64_t columns[V];
        for (int v = 0; v < V; ++v) columns[v] = panel.block * kColumnBlock + column + v * W;
        return store_tile(a, row, columns, acc);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) vstore(sums + r * kColumnBlock + column + v * W, acc[r][v]);
    }
}

// Adds the products of R rows with a panel to their sums, in the registers where its numbers come to be; they are kept for other
// tiles where there are any.
template <int R, int kBits, bool kKept>
__attribute__((noinline)) void tile_in_registers(const LinearArgs& a, const GroupedPanel& panel, int64_t row, float* sums) {
    constexpr int V = vecs_in_registers(R), kSpan = W * V;
    const Input* x[R];
    for (int r = 0; r < R; ++r) x[r] = static_cast<const Input*>(a.x) + (row + r) * a.x_stride + panel.group0 * kGroup;
    for (int column = 0; column < kColumnBlock; column += kSpan) {
        const char* group = panel.groups;
        uint16_t* to = panel.numbers;
        GroupScales<kBits> scales[V] = {};
        // The numbers of four inputs.
        const auto make = [&](auto step, Pairs (&pairs)[2][V]) __attribute__((always_inline)) {
            constexpr int kStep = decltype(step)::value;
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
                const int at = column + v * W;
                if constexpr (scales_change<kBits>(kStep)) {
                    scales[v] = GroupScales<kBits>(group + scale_of_column(kBits, kStep / 4 * kIntegerColumns + at));
                }
                Pairs both[2];
                unpack<kBits, (kStep >= kBits)>(words_of_step<kBits, kStep>(group + place_of_column(kBits, at)), scales[v], both);
#pragma GCC unroll 2
                for (int i = 0; i < 2; ++i) {
                    pairs[i][v] = both[i];
                    if (kKept) store_pairs(to + at / 16 * kTileElements + (kStep * 2 + i) * 32 + at % 16 * 2, both[i]);
                }
            }
        };
        Vec acc[R][V];
        take_up(acc, panel, sums, column);
        // Numbers are made a step before they are multiplied, so that neither waits for the other.
        Pairs pairs[2][2][V];
        make(Step<0>(), pairs[0]);
        for (int64_t g = panel.group0; g < panel.group1; ++g) {
            fetch_group<kBits, kSpan>(group, column);
            each_step([&](auto step) __attribute__((always_inline)) {
                constexpr int kStep = decltype(step)::value;
                if constexpr (kStep + 1 < kGroup / 4) {
                    make(Step<kStep + 1>(), pairs[(kStep + 1) % 2]);
                } else {
                    if (g + 1 < panel.group1) group += group_bytes(kBits), to += 2 * kTileElements;
                    make(Step<0>(), pairs[0]);
                }
                const int64_t k = (g - panel.group0) * kGroup + kStep * 4;
#pragma GCC unroll 2
                for (int i = 0; i < 2; ++i) accumulate_numbers<R, V>(acc, x, k + i * 2, pairs[kStep % 2][i]);
            });
        }
        put_down(a, row, panel, sums, column, acc);
    }
}

// The same with a panel of plain numbers.
template <int R>
__attribute__((noinline)) void tile_grouped(const LinearArgs& a, const GroupedPanel& panel, int64_t row, float* sums) {
    constexpr int V = kLinearVecs, kSpan = W * V;
    const Input* x[R];
    for (int r = 0; r < R; ++r) x[r] = static_cast<const Input*>(a.x) + (row + r) * a.x_stride + panel.group0 * kGroup;
    for (int column = 0; column < kColumnBlock; column += kSpan) {
        const uint16_t* w[V];
        for (int v = 0; v < V; ++v) w[v] = panel.numbers + (column + v * W) / 16 * kTileElements + (column + v * W) % 16 * 2;
        Vec acc[R][V];
        take_up(acc, panel, sums, column);
        for (int64_t k = 0; k < (panel.group1 - panel.group0) * kGroup; k += kDepthStep) {
            for (int64_t i = 0; i < kDepthStep; i += 2) accumulate_pair<R, V>(acc, x, k + i, w, k * kColumnBlock + i * 16);
        }
        put_down(a, row, panel, sums, column, acc);
    }
}

typedef void (*GroupedTile)(const LinearArgs&, const GroupedPanel&, int64_t row, float* sums);

struct GroupedTiles {
    GroupedTile plain[kLinearRows + 1]{}, alone[4][kRowsInRegisters + 1]{}, first[4][kRowsInRegisters + 1]{}; // [index of the bits][rows]
    template <int R> constexpr void fill() {
        if constexpr (R > 0) {
            plain[R] = tile_grouped<R>;
            fill<R - 1>();
        }
    }
    template <int kBits, int R> constexpr void fill_registers() {
        if constexpr (R > 0) {
            alone[index_of_bits(kBits)][R] = tile_in_registers<R, kBits, false>;
            if constexpr (kFirstInRegisters && R >= kLinearRows / 2) first[index_of_bits(kBits)][R] = tile_in_registers<R, kBits, true>;
            fill_registers<kBits, R - 1>();
        }
    }
    constexpr GroupedTiles() {
        fill<kLinearRows>();
        fill_registers<4, kRowsInRegisters>();
        fill_registers<5, kRowsInRegisters>();
        fill_registers<6, kRowsInRegisters>();
        fill_registers<8, kRowsInRegisters>();
    }
};

constexpr GroupedTiles kGroupedTiles;

template <int kBits> void dequantize_panel(const GroupedPanel& panel) {
    const char* group = panel.groups;
    uint16_t* to = panel.numbers;
    for (int64_t g = panel.group0; g < panel.group1; ++g, group += group_bytes(kBits), to += 2 * kTileElements) {
        fetch_group<kBits, kColumnBlock>(group, 0);
        dequantize_group<kBits>(group, to);
    }
}

template <int kBits> void multiply_panels(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block) {
    alignas(64) float sums[kRowsAtOnce * kColumnBlock];
    alignas(64) uint16_t numbers[kPanelGroups * 2 * kTileElements];
    const int64_t groups = a.k / kGroup, rows = row1 - row0, tiles = (rows + kLinearRows - 1) / kLinearRows;
    const bool alone = rows <= kRowsInRegisters;
    const char* block_groups = static_cast<const char*>(a.weight) + block * groups * group_bytes(kBits);
    for (int64_t group0 = 0; group0 < groups; group0 += kPanelGroups) {
        const int64_t group1 = min64(groups, group0 + kPanelGroups);
        const GroupedPanel panel{block_groups + group0 * group_bytes(kBits), numbers, block, group0, group1};
        if (!alone && !kFirstInRegisters) dequantize_panel<kBits>(panel);
        for (int64_t t = 0, row = row0; t < tiles; ++t) {
            const int64_t size = (row1 - row) / (tiles - t); // nearly equal
            const GroupedTile tile = alone                         ? kGroupedTiles.alone[index_of_bits(kBits)][size]
                                     : t == 0 && kFirstInRegisters ? kGroupedTiles.first[index_of_bits(kBits)][size]
                                                                   : kGroupedTiles.plain[size];
            tile(a, panel, row, sums + (row - row0) * kColumnBlock);
            row += size;
        }
    }
}

void linear_grouped(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    constexpr decltype(&multiply_panels<4>) kMultiply[] = {multiply_panels<4>, multiply_panels<5>, multiply_panels<6>, multiply_panels<8>};
    const auto multiply = kMultiply[index_of_bits(a.group_bits)];
    for (int64_t row = row0; row < row1; row += kRowsAtOnce) {
        for (int64_t block = block0; block < block1; ++block) multiply(a, row, min64(row1, row + kRowsAtOnce), block);
    }
    if (a.past_caches) vstream_end();
}
