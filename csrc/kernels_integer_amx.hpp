// Integer products on tiles: 16 rows x half a block x one group a step. The dots are exact and the floats are combined as
// accumulate_group combines them, so results have the bits of the kernels that take over for few rows. Included inside the
// instruction set's own namespace, after kernels_integer.hpp and a header that defines the tile instructions.
//
// Tiles 0 and 1 hold dots, one group's while the other's are scaled, or those of both halves of a group's inputs; 2 and 3 the
// rows' bytes, 4 and 5 the weights' lines. Sums stay in registers from group to group: this is why halves of a block take turns.

constexpr int kTileRows = 16; // rows of a tile, and outputs of half a block
constexpr int64_t kChunkGroups = 24; // at most: their bytes stay in the nearest cache while all rows pass

// Inputs that share a scale: tiles hold no others.
constexpr int inputs_of_dot(int bits) { return bits == 6 ? kGroup / 2 : kGroup; }

inline TileConfig integer_tile_config(int64_t rows, int bits) {
    TileConfig config{};
    config.palette = 1;
    const int64_t inputs = inputs_of_dot(bits), tile_rows[6] = {rows, rows, rows, rows, inputs / 4, inputs / 4};
    for (int t = 0; t < 6; ++t) {
        config.rows[t] = static_cast<uint8_t>(tile_rows[t]);
        config.column_bytes[t] = static_cast<uint16_t>(t == 2 || t == 3 ? inputs : kLine);
    }
    return config;
}

typedef void (*UnpackLines)(const char*, char*);
constexpr UnpackLines kUnpackLines[] = {unpack_lines<4>, unpack_lines<5>, unpack_lines<6>, nullptr};

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

constexpr int kTileDots = kTileRows * kTileRows;

// The exact dots of half a block with bytes of activations, of rows kStride apart, in one of two places.
template <int kPlace, int kStride> inline __attribute__((always_inline)) void dot_tiles(const char* x, const char* lines, int32_t* dots) {
    if constexpr (kPlace == 0) {
        OCTAVO_TILE_ZERO(0);
        OCTAVO_TILE_LOAD(2, x, kStride);
        OCTAVO_TILE_LOAD(4, lines, kLine);
        OCTAVO_TILE_DOT_BYTES(0, 2, 4);
        OCTAVO_TILE_STORE(0, dots, kTileRows * 4);
    } else {
        OCTAVO_TILE_ZERO(1);
        OCTAVO_TILE_LOAD(3, x, kStride);
        OCTAVO_TILE_LOAD(5, lines, kLine);
        OCTAVO_TILE_DOT_BYTES(1, 3, 5);
        OCTAVO_TILE_STORE(1, dots, kTileRows * 4);
    }
}

// Those of a group, level by level of the activations: all its inputs, or with 6 bits each half of them.
template <int kPlace, int kBits, int kLevels>
inline __attribute__((always_inline)) void dot_group(const char* x, const char* lines, int32_t* dots) {
    constexpr int kStride = record_bytes(kBits, kLevels), kLow = record_bytes(kBits, 1);
    if constexpr (kBits == 6) {
#pragma GCC unroll 2
        for (int level = 0; level < kLevels; ++level, x += kLow, dots += 2 * kTileDots) {
            dot_tiles<0, kStride>(x, lines, dots);
            dot_tiles<1, kStride>(x + kGroup / 2, lines + kGroup / 8 * kLine, dots + kTileDots);
        }
    } else if constexpr (kLevels == 2) {
        dot_tiles<0, kStride>(x, lines, dots);
        dot_tiles<1, kStride>(x + kLow, lines, dots + kTileDots);
    } else {
        dot_tiles<kPlace, kStride>(x, lines, dots);
    }
}

// Adds products to the sums, as accumulate_group does; `dots` are those of unsigned bytes, with 6 bits of one half of a group's
// inputs and then of the other, and then those of the next level.
template <int R, int kBits, int kLevels>
inline __attribute__((always_inline)) void scale_tile(Vec (&acc)[R][kTileRows / W], const int32_t* dots, const char* x,
                                                      const char* scales) {
    constexpr bool kMinimums = kBits < 6;
#pragma GCC unroll 4
    for (int v = 0; v < kTileRows / W; ++v) {
        const Vec scale = vload_half(scales + v * W * 2);
        const Vec second = kBits < 8 ? vload_half(scales + (kIntegerColumns + v * W) * 2) : vzero();
        constexpr bool kOffset = kBits == 8 && kLevels == 1; // is biased
        const Vec below = kOffset ? scale_below<kBits, kLevels>(scale) : vzero();
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const char* record = x + r * record_bytes(kBits, kLevels);
            const auto exact = [&](int half) __attribute__((always_inline)) {
                const int32_t* from = dots + half * kTileDots + r * kTileRows + v * W;
                Dots found, low;
                __builtin_memcpy(&found, from, sizeof found);
                if constexpr (kLevels == 2) {
                    __builtin_memcpy(&low, from + kGroup / inputs_of_dot(kBits) * kTileDots, sizeof low);
                    found = dadd(dtimes255(found), low);
                }
                if (kBits == 6) return dadd(found, dset(offset_of_half(record, half)));
                return kBits == 8 ? dadd(found, dset(offset_of_all(record))) : found;
            };
            Vec products;
            if (kBits == 6) products = vfma(dfloat(exact(1)), second, vmul(dfloat(exact(0)), scale));
            else if (kOffset) products = dscaled<kBits, kLevels>(exact(0), scale, below);
            else products = vfma(dfloat(exact(0)), scale, below);
            acc[r][v] = vfma(products, vset(scale_at(record)), acc[r][v]);
            if (kMinimums) acc[r][v] = vfma(second, vset(scaled_sum_at(record)), acc[r][v]);
        }
    }
}

template <int R, int kBits, int kLevels> __attribute__((noinline)) void multiply_half(const HalfPass& pass) {
    constexpr int V = kTileRows / W, kStep = R * record_bytes(kBits, kLevels);
    constexpr int kDots = kGroup / inputs_of_dot(kBits) * kLevels; // tiles of dots of a group
    alignas(64) int32_t dots[2][kDots * kTileDots];
    Vec acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = pass.first ? vzero() : vload(pass.sums + r * kIntegerColumns + v * W);
    }
    const char *x = pass.x, *lines = pass.lines, *scales = pass.scales;
    const char *fetch = pass.fetch, *later = pass.later;
    dot_group<0, kBits, kLevels>(x, lines, dots[0]);
    for (int64_t g = 0; g < pass.groups; g += 2) {
        for (int64_t i = 0; i < pass.fetch_lines; ++i, fetch += kLine) __builtin_prefetch(fetch, 0, 2);
        for (int64_t i = 0; i < pass.later_lines; ++i, later += kLine) __builtin_prefetch(later, 0, 2);
        if (g + 1 < pass.groups) dot_group<1, kBits, kLevels>(x + kStep, lines += pass.lines_step, dots[1]);
        scale_tile<R, kBits, kLevels>(acc, dots[0], x, scales);
        x += kStep;
        scales += pass.scales_step;
        if (g + 1 == pass.groups) break;
        if (g + 2 < pass.groups) dot_group<0, kBits, kLevels>(x + kStep, lines += pass.lines_step, dots[0]);
        scale_tile<R, kBits, kLevels>(acc, dots[1], x, scales);
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
    HalfKernel of[2][4][kTileRows + 1]{}; // [levels less one][index of the bits][rows]
    template <int kBits, int R> constexpr void fill() {
        if constexpr (R > 0) {
            of[0][index_of_bits(kBits)][R] = multiply_half<R, kBits, 1>;
            of[1][index_of_bits(kBits)][R] = multiply_half<R, kBits, 2>;
            fill<kBits, R - 1>();
        }
    }
    constexpr HalfKernels() {
        fill<4, kTileRows>();
        fill<5, kTileRows>();
        fill<6, kTileRows>();
        fill<8, kTileRows>();
    }
};

constexpr HalfKernels kHalfKernels;

// Tiles [tile0, tile1), at most kTilesAtOnce, of a block. While they pass a chunk of its groups they fetch the next one.
inline void multiply_block_tiles(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block, int64_t& configured,
                                 PieceLeft& left) {
    alignas(64) float sums[kTilesAtOnce * kTileRows * kIntegerColumns];
    alignas(64) char bytes[kChunkGroups * kGroupLines];
    const EvenTiles row_tiles(a.rows, a.tiles);
    const int64_t stream = group_bytes(a.bits), tiles = tile1 - tile0;
    const UnpackLines unpack = kUnpackLines[index_of_bits(a.bits)];
    const int64_t chunks = (a.groups + kChunkGroups - 1) / kChunkGroups;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t group0 = a.groups * chunk / chunks, groups = a.groups * (chunk + 1) / chunks - group0;
        const char* w = a.weight + (block * a.groups + group0) * stream;
        if (unpack) {
            for (int64_t g = 0; g < groups; ++g) unpack(w + g * stream, bytes + g * kGroupLines);
            tile_fence();
        }
        TilePass share{};
        const int64_t later_bytes = later_a_group(groups);
        HalfPass pass{};
        pass.groups = groups;
        pass.lines_step = unpack ? kGroupLines : stream;
        pass.scales_step = stream;
        pass.first = chunk == 0;
        pass.fetch = w + groups * stream;
        pass.fetch_lines = (2 * stream / kLine + 2 * tiles - 1) / (2 * tiles);
        for (int64_t tile = tile0; tile < tile1; ++tile) {
            const int64_t row = row_tiles.begin(tile), rows = row_tiles.rows(tile);
            if (rows != configured) tile_configure(integer_tile_config(rows, a.bits));
            configured = rows;
            float* own = sums + (tile - tile0) * kTileRows * kIntegerColumns;
            pass.x = a.x + (row * a.groups + group0 * rows) * record_bytes(a.bits, a.levels);
            for (int half = 0; half < 2; ++half) {
                pass.lines = (unpack ? bytes : w) + half * 8 * kLine;
                pass.scales = w + scale_of_column(a.bits, half * kTileRows);
                pass.sums = own + half * kTileRows;
                fetch_later(a.pieces, left, groups, later_bytes, share);
                pass.later = share.later;
                pass.later_lines = (2 * share.later_bytes + kLine - 1) / kLine;
                kHalfKernels.of[a.levels - 1][index_of_bits(a.bits)][rows](pass);
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

constexpr IntegerKernels integer_amx_table(const char* name, const IntegerKernels* (*few)(), const PeakKernel* int8_peak = &kInt8Peak) {
    IntegerKernels table = integer_table(name);
    table.tiles = [](int64_t rows, int, int, bool) { return (rows + kTileRows - 1) / kTileRows; };
    table.linear = linear_integer_amx;
    table.few = few;
    table.int8_peak = int8_peak;
    table.pairs = false;
    table.rows_of_part = 512; // weights pass sooner
    return table;
}
