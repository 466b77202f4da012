// Integer products on tiles: 16 rows x half a block x one group a step. The dots are exact and the floats are combined as
// accumulate_group combines them, so results have the bits of the kernels that take over for few rows. Included inside the
// instruction set's own namespace, after kernels_integer.hpp and a header that defines the tile instructions.
//
// Tiles 0 and 1 hold dots, one group's while the other's are scaled; 2 and 3 the rows' bytes, 4 and 5 the weights' lines. Sums
// stay in registers from group to group: this is why halves of a block take turns.

constexpr int kTileRows = 16; // rows of a tile, and outputs of half a block
constexpr int64_t kChunkGroups = 24; // at most: their bytes stay in the nearest cache while all rows pass
constexpr int64_t kGroupLines = 2 * 8 * kLine; // bytes of a group's weights, one each

inline TileConfig integer_tile_config(int64_t rows) {
    TileConfig config{};
    config.palette = 1;
    const int64_t tile_rows[6] = {rows, rows, rows, rows, kGroup / 4, kGroup / 4};
    for (int t = 0; t < 6; ++t) {
        config.rows[t] = static_cast<uint8_t>(tile_rows[t]);
        config.column_bytes[t] = static_cast<uint16_t>(t == 2 || t == 3 ? kGroup : kLine);
    }
    return config;
}

// Eight lines of bytes from four of nibbles, for both halves of a block.
inline void unpack_nibbles(const char* w, char* lines) {
    constexpr int kStep = static_cast<int>(sizeof(Bytes));
    for (int half = 0; half < 2; ++half, w += 4 * kLine, lines += 8 * kLine) {
        for (int at = 0; at < 4 * kLine; at += kStep) {
            const Bytes raw = dload(w + at), low = dlow(raw), high = dhigh(raw);
            __builtin_memcpy(lines + at, &low, sizeof low);
            __builtin_memcpy(lines + 4 * kLine + at, &high, sizeof high);
        }
    }
}

// What a tile of rows multiplies in one go: so many groups of half a block.
struct HalfPass {
    const char* x;     // records of the first group
    const char* lines; // of the first group's half; bytes
    int64_t lines_step;
    const char* scales; // of the half in the first group
    int64_t scales_step;
    int64_t groups;
    float* sums; // [row][kIntegerColumns]: of the groups before, unless these are the first
    bool first;
    const char *fetch, *later; // two groups bring so many lines of what comes next, and later, into the caches
    int64_t fetch_lines, later_lines;
};

// The exact dots of a group's half, in one of two places.
template <int kPlace> inline __attribute__((always_inline)) void dot_tiles(const char* x, const char* lines, int32_t* dots) {
    if constexpr (kPlace == 0) {
        OCTAVO_TILE_ZERO(0);
        OCTAVO_TILE_LOAD(2, x, kRecord);
        OCTAVO_TILE_LOAD(4, lines, kLine);
        OCTAVO_TILE_DOT_BYTES(0, 2, 4);
        OCTAVO_TILE_STORE(0, dots, kTileRows * 4);
    } else {
        OCTAVO_TILE_ZERO(1);
        OCTAVO_TILE_LOAD(3, x, kRecord);
        OCTAVO_TILE_LOAD(5, lines, kLine);
        OCTAVO_TILE_DOT_BYTES(1, 3, 5);
        OCTAVO_TILE_STORE(1, dots, kTileRows * 4);
    }
}

// Adds a group's products to the sums, as accumulate_group does; `dots` are those of unsigned bytes.
template <int R, bool kFour>
inline __attribute__((always_inline)) void scale_dots(Vec (&acc)[R][kTileRows / W], const int32_t* dots, const char* x,
                                                      const char* scales) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileRows / W; ++v) {
        const Vec scale = vload_half(scales + v * W * 2);
        const Vec minimum = kFour ? vload_half(scales + (kIntegerColumns + v * W) * 2) : vzero();
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const char* record = x + r * kRecord;
            Dots exact;
            __builtin_memcpy(&exact, dots + r * kTileRows + v * W, sizeof exact);
            if (!kFour) exact = dadd(exact, dset(word_at(record + kGroup + 4)));
            acc[r][v] = vfma(vmul(dfloat(exact), scale), vset(float_at(record + kGroup)), acc[r][v]);
            if (kFour) acc[r][v] = vfma(minimum, vset(float_at(record + kGroup + 4)), acc[r][v]);
        }
    }
}

template <int R, bool kFour> __attribute__((noinline)) void multiply_half(const HalfPass& pass) {
    constexpr int V = kTileRows / W, kStep = R * kRecord;
    alignas(64) int32_t dots[2][kTileRows * kTileRows];
    Vec acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = pass.first ? vzero() : vload(pass.sums + r * kIntegerColumns + v * W);
    }
    const char *x = pass.x, *lines = pass.lines, *scales = pass.scales;
    const char *fetch = pass.fetch, *later = pass.later;
    dot_tiles<0>(x, lines, dots[0]);
    for (int64_t g = 0; g < pass.groups; g += 2) {
        for (int64_t i = 0; i < pass.fetch_lines; ++i, fetch += kLine) __builtin_prefetch(fetch, 0, 2);
        for (int64_t i = 0; i < pass.later_lines; ++i, later += kLine) __builtin_prefetch(later, 0, 2);
        if (g + 1 < pass.groups) dot_tiles<1>(x + kStep, lines += pass.lines_step, dots[1]);
        scale_dots<R, kFour>(acc, dots[0], x, scales);
        x += kStep;
        scales += pass.scales_step;
        if (g + 1 == pass.groups) break;
        if (g + 2 < pass.groups) dot_tiles<0>(x + kStep, lines += pass.lines_step, dots[0]);
        scale_dots<R, kFour>(acc, dots[1], x, scales);
        x += kStep;
        scales += pass.scales_step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) vstore(pass.sums + r * kIntegerColumns + v * W, acc[r][v]);
    }
}

typedef void (*HalfKernel)(const HalfPass&);

struct HalfKernels {
    HalfKernel of[2][kTileRows + 1]{}; // [4 bits][rows]
    template <int R> constexpr void fill() {
        if constexpr (R > 0) {
            of[0][R] = multiply_half<R, false>;
            of[1][R] = multiply_half<R, true>;
            fill<R - 1>();
        }
    }
    constexpr HalfKernels() { fill<kTileRows>(); }
};

constexpr HalfKernels kHalfKernels;

// Tiles [tile0, tile1), at most kTilesAtOnce, of a block. While they pass a chunk of its groups they fetch the next one.
inline void multiply_block_tiles(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block, int64_t& configured,
                                 PieceLeft& left) {
    alignas(64) float sums[kTilesAtOnce * kTileRows * kIntegerColumns];
    alignas(64) char bytes[kChunkGroups * kGroupLines];
    const int64_t group_bytes = a.four ? kGroupBytes4 : kGroupBytes8, tiles = tile1 - tile0;
    const int64_t chunks = (a.groups + kChunkGroups - 1) / kChunkGroups;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t group0 = a.groups * chunk / chunks, groups = a.groups * (chunk + 1) / chunks - group0;
        const char* w = a.weight + (block * a.groups + group0) * group_bytes;
        if (a.four) {
            for (int64_t g = 0; g < groups; ++g) unpack_nibbles(w + g * group_bytes, bytes + g * kGroupLines);
            tile_fence();
        }
        TilePass share{};
        share.group1 = groups;
        HalfPass pass{};
        pass.groups = groups;
        pass.lines_step = a.four ? kGroupLines : group_bytes;
        pass.scales_step = group_bytes;
        pass.first = chunk == 0;
        pass.fetch = w + groups * group_bytes;
        pass.fetch_lines = (2 * group_bytes / kLine + 2 * tiles - 1) / (2 * tiles);
        for (int64_t tile = tile0; tile < tile1; ++tile) {
            const int64_t row = tile_row(a.rows, a.tiles, tile), rows = tile_row(a.rows, a.tiles, tile + 1) - row;
            if (rows != configured) tile_configure(integer_tile_config(rows));
            configured = rows;
            float* own = sums + (tile - tile0) * kTileRows * kIntegerColumns;
            pass.x = a.x + (row * a.groups + group0 * rows) * kRecord;
            for (int half = 0; half < 2; ++half) {
                pass.lines = (a.four ? bytes : w) + half * 8 * kLine;
                pass.scales = w + (a.four ? 8 : 16) * kLine + half * kTileRows * 2;
                pass.sums = own + half * kTileRows;
                fetch_later(a.pieces, left, share);
                pass.later = share.later;
                pass.later_lines = (2 * share.later_bytes + kLine - 1) / kLine;
                kHalfKernels.of[a.four][rows](pass);
                pass.fetch += (groups + 1) / 2 * pass.fetch_lines * kLine;
            }
            for (int64_t r = 0; chunk == chunks - 1 && r < rows; ++r) {
                for (int column = 0; column < kIntegerColumns; column += W) {
                    store_output(a, row + r, block * kIntegerColumns + column, vload(own + r * kIntegerColumns + column));
                }
            }
        }
    }
}

void linear_integer_amx(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block0, int64_t block1) {
    int64_t configured = 0;
    PieceLeft left;
    for (int64_t block = block0; block < block1; ++block) {
        for (int64_t tile = tile0; tile < tile1; tile += kTilesAtOnce) {
            multiply_block_tiles(a, tile, min64(tile1, tile + kTilesAtOnce), block, configured, left);
        }
    }
    tile_release();
}

constexpr IntegerKernels integer_amx_table(const char* name, const IntegerKernels* (*few)()) {
    IntegerKernels table = integer_table(name);
    table.rows_of_tile = kTileRows;
    table.linear = linear_integer_amx;
    table.few = few;
    return table;
}
