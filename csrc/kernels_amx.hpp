// bf16 matrix products on tiles: 32 rows x 32 columns in four accumulators. Included inside the instruction set's own namespace,
// after a header that defines the tile instructions.
//
// Tiles 0-3 accumulate [upper rows | lower rows] x [columns 0-15 | columns 16-31]; 4, 5 hold x; 6, 7 hold weights. x rows are
// zero up to a multiple of kDepthStep. A row's sums do not depend on how many rows its tile has, nor on where they waited
// between panels.
//
// A panel, a few steps of a block, meets all rows from the first-level cache, where compact weights are unpacked to. Sums of
// tiles of rows wait in memory for their turn at the next panel. Meanwhile weights further on are asked for.

constexpr int64_t kPanelSteps = 6, kPanelElements = kPanelSteps * 2 * kTileElements;
constexpr int64_t kStepsOfFew = 3; // of a panel where all rows are one tile: its sums stay where they are
constexpr int64_t kTilesAtOnce = 8, kTileSums = 32 * kColumnBlock; // tiles of rows whose sums wait while others take their turn

inline TileConfig tile_config(int64_t upper, int64_t lower) {
    TileConfig config{};
    config.palette = 1;
    const int64_t rows[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int t = 0; t < 8; ++t) {
        config.rows[t] = static_cast<uint8_t>(rows[t] > 0 ? rows[t] : 1);
        config.column_bytes[t] = 64;
    }
    return config;
}

// Rows of a product in tiles of one size, so that tiles are configured once: where it does not divide them, the last one begins
// in the one before, and those rows are computed again.
struct RowTiles {
    RowTiles(int64_t row0, int64_t row1)
        : row0(row0), rows(row1 - row0), count((rows + 31) / 32), size((rows + count - 1) / count) {}
    int64_t row0, rows, count, size;
    int64_t begin(int64_t tile) const { return row0 + min64(tile * size, rows - size); }
    int64_t first_new(int64_t tile) const { return row0 + tile * size; }
};

// Plain weights lie as tiles want them.
struct PlainPanels {
    PlainPanels(const LinearArgs& a, int64_t block, uint16_t*)
        : at(static_cast<const char*>(a.weight) + block * bf16_block_elements(a.k) * 2), ahead(at) {}

    const uint16_t* take(int64_t steps) {
        const char* now = at;
        at += steps * kStepBytes;
        return reinterpret_cast<const uint16_t*>(now);
    }

    static constexpr int64_t kStepBytes = 2 * kTileElements * 2;
    const char *at, *ahead;
};

// Compact weights are unpacked, a panel at a time.
struct CompactPanels {
    CompactPanels(const LinearArgs& a, int64_t block, uint16_t* panel)
        : a(a), from(static_cast<const uint8_t*>(a.weight) + block * compact_block_bytes(a.k)),
          ahead(reinterpret_cast<const char*>(from)), block(block), panel(panel) {}

    const uint16_t* take(int64_t steps) {
        if (done == 0) {
            exception = a.compact->exceptions + a.compact->first[block];
            table = group_table(a.compact->highs + block * 16);
        }
        const int64_t begin = done;
        uint16_t* to = panel;
        for (int64_t step = 0; step < steps; ++step, to += 2 * kTileElements) {
#pragma GCC unroll 8
            for (int group = 0; group < 8; ++group, from += kGroupBytes) {
                for (int half = 0; half < 2; ++half) {
                    uint16_t* pair = to + group * 64 + half * 32;
                    unpack_half(from, half, table, pair, pair + kTileElements);
                }
            }
        }
        done += steps * 2 * kTileElements;
        if (place_of(exception) < done) patch(begin);
        if (done == bf16_block_elements(a.k)) ++block, done = 0;
        return panel;
    }

    __attribute__((noinline, cold)) void patch(int64_t begin) {
        for (; place_of(exception) < done; ++exception) {
            const int64_t place = place_of(exception) - begin, pair = place / 64, i = place % 64;
            set_upper(panel[pair / 16 * 2 * kTileElements + i / 32 * kTileElements + pair % 16 * 32 + i % 32], exception);
        }
    }

    static constexpr int64_t kStepBytes = 8 * kGroupBytes;
    const LinearArgs& a;
    const uint8_t* from;
    const char* ahead;
    int64_t block, done = 0; // elements of the block
    uint16_t* panel;
    const uint32_t* exception;
    GroupTable table;
};

constexpr int64_t kStreamAhead = 48 << 10; // bytes, into the second-level cache: the first is full of what is in use

template <int kBegin, int kEnd, int kMost> inline __attribute__((always_inline)) void fetch_lines(const char* ahead) {
    for (int line = kBegin; line < (kEnd < kMost ? kEnd : kMost); ++line) __builtin_prefetch(ahead + line * 64 + kStreamAhead, 0, 2);
}

// Adds a panel's products to the tiles. Each step brings kLines cache lines of the stream of weights nearer, a few at a time: a
// burst would hold up the loads of tiles.
template <int kLines, bool kBoth>
inline __attribute__((always_inline)) void multiply_panel(const uint16_t* x, int64_t x_stride, const uint16_t* w, int64_t steps,
                                                          const char*& ahead) {
    const int64_t stride = x_stride * 2;
    constexpr int kPart = (kLines + 3) / 4;
    for (int64_t step = 0; step < steps; ++step, w += 2 * kTileElements, x += kDepthStep, ahead += kLines * 64) {
        OCTAVO_TILE_LOAD(4, x, stride);
        OCTAVO_TILE_LOAD(6, w, 64);
        OCTAVO_TILE_DOT(0, 4, 6);
        fetch_lines<0, kPart, kLines>(ahead);
        OCTAVO_TILE_LOAD(7, w + kTileElements, 64);
        OCTAVO_TILE_DOT(1, 4, 7);
        fetch_lines<kPart, 2 * kPart, kLines>(ahead);
        if constexpr (kBoth) {
            OCTAVO_TILE_LOAD(5, x + 16 * x_stride, stride);
            OCTAVO_TILE_DOT(2, 5, 6);
        }
        fetch_lines<2 * kPart, 3 * kPart, kLines>(ahead);
        if constexpr (kBoth) OCTAVO_TILE_DOT(3, 5, 7);
        fetch_lines<3 * kPart, 4 * kPart, kLines>(ahead);
    }
}

template <bool kBoth> inline void zero_sums() {
    OCTAVO_TILE_ZERO(0);
    OCTAVO_TILE_ZERO(1);
    if constexpr (kBoth) {
        OCTAVO_TILE_ZERO(2);
        OCTAVO_TILE_ZERO(3);
    }
}

template <bool kBoth> inline void load_sums(const float* sums) {
    OCTAVO_TILE_LOAD(0, sums, kColumnBlock * 4);
    OCTAVO_TILE_LOAD(1, sums + 16, kColumnBlock * 4);
    if constexpr (kBoth) {
        OCTAVO_TILE_LOAD(2, sums + 16 * kColumnBlock, kColumnBlock * 4);
        OCTAVO_TILE_LOAD(3, sums + 16 * kColumnBlock + 16, kColumnBlock * 4);
    }
}

template <bool kBoth> inline void store_sums(float* to, int64_t stride) {
    OCTAVO_TILE_STORE(0, to, stride * 4);
    OCTAVO_TILE_STORE(1, to + 16, stride * 4);
    if constexpr (kBoth) {
        OCTAVO_TILE_STORE(2, to + 16 * stride, stride * 4);
        OCTAVO_TILE_STORE(3, to + 16 * stride + 16, stride * 4);
    }
    tile_fence();
}

// The sums of a tile, with what is added to them, to where they belong.
inline void write_sums(const LinearArgs& a, const RowTiles& rows, int64_t tile, int64_t block, const float* sums) {
    constexpr int V = kColumnBlock / W;
    int64_t columns[V];
    for (int v = 0; v < V; ++v) columns[v] = block * kColumnBlock + v * W;
    const int64_t begin = rows.begin(tile);
    const auto write = [&]<int R>(int64_t row) __attribute__((always_inline)) {
        Vec sum[R][V];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) sum[r][v] = vload(sums + (row + r - begin) * kColumnBlock + v * W);
        }
        store_tile(a, row, columns, sum);
    };
    int64_t row = rows.first_new(tile);
    for (; row + 4 <= begin + rows.size; row += 4) write.template operator()<4>(row);
    for (; row < begin + rows.size; ++row) write.template operator()<1>(row);
}

// kShare: tiles, nearly, that share in fetching weights.
template <int kShare, bool kBoth, int64_t kSteps, class Panels>
__attribute__((noinline)) void multiply_blocks(const LinearArgs& a, const RowTiles& rows, int64_t block0, int64_t block1) {
    constexpr int kLines = (Panels::kStepBytes / 64 + kShare - 1) / kShare;
    alignas(64) float sums[kTilesAtOnce * kTileSums];
    alignas(64) uint16_t memory[kSteps * 2 * kTileElements];
    const int64_t steps = round_up(a.k, kDepthStep) / kDepthStep;
    const uint16_t* x = static_cast<const uint16_t*>(a.x);
    const bool direct = !a.bias && !a.residual && !a.past_caches;
    Panels panels(a, block0, memory);
    for (int64_t block = block0; block < block1; ++block) {
        for (int64_t step = 0; step < steps; step += kSteps) {
            const int64_t now = min64(steps - step, kSteps);
            tile_fence();
            const uint16_t* w = panels.take(now);
            tile_fence();
            const char* ahead = panels.ahead;
            for (int64_t tile = 0; tile < rows.count; ++tile) {
                float* own = sums + tile * kTileSums;
                if (step == 0) zero_sums<kBoth>();
                else if (rows.count > 1) load_sums<kBoth>(own);
                multiply_panel<kLines, kBoth>(x + rows.begin(tile) * a.x_stride + step * kDepthStep, a.x_stride, w, now, ahead);
                if (step + now < steps) {
                    if (rows.count > 1) store_sums<kBoth>(own, kColumnBlock);
                } else if (direct && block * kColumnBlock + kColumnBlock <= a.n) {
                    store_sums<kBoth>(a.out + (rows.begin(tile) - a.first_row) * a.out_stride + block * kColumnBlock - a.first_column,
                                      a.out_stride);
                } else {
                    if (tile > 0) write_sums(a, rows, tile - 1, block, own - kTileSums); // late: it would wait for them
                    store_sums<kBoth>(own, kColumnBlock);
                    if (tile + 1 == rows.count) write_sums(a, rows, tile, block, own);
                }
            }
            panels.ahead += now * Panels::kStepBytes;
        }
    }
}

template <class Panels> void linear_tiles(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    int64_t configured = 0;
    for (int64_t row = row0; row < row1; row += 32 * kTilesAtOnce) {
        const RowTiles rows(row, min64(row1, row + 32 * kTilesAtOnce));
        if (rows.size != configured) tile_configure(tile_config(min64(rows.size, 16), rows.size - 16));
        configured = rows.size;
        if (rows.size <= 16) multiply_blocks<1, false, kStepsOfFew, Panels>(a, rows, block0, block1);
        else if (rows.count == 1) multiply_blocks<1, true, kStepsOfFew, Panels>(a, rows, block0, block1);
        else if (rows.count < 4) multiply_blocks<2, true, kPanelSteps, Panels>(a, rows, block0, block1);
        else if (rows.count < 6) multiply_blocks<4, true, kPanelSteps, Panels>(a, rows, block0, block1);
        else multiply_blocks<6, true, kPanelSteps, Panels>(a, rows, block0, block1);
    }
    tile_release();
    if (a.past_caches) vstream_end();
}

void linear_amx(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    linear_tiles<PlainPanels>(a, row0, row1, block0, block1);
}

void linear_compact(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    linear_tiles<CompactPanels>(a, row0, row1, block0, block1);
}
