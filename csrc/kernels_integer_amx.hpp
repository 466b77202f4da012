// Integer products on tiles: 16 rows x 32 columns x one group a step. The dots are exact and the floats are combined as
// accumulate_group combines them, so results have the bits of the kernels that take over for few rows. Included inside the
// instruction set's own namespace, after kernels_integer.hpp and a header that defines the tile instructions.
//
// Tiles 0 and 1 hold dots of the two halves of a block, 2 the rows' bytes, 3 and 4 the weights' lines.

constexpr int kTileRows = 16; // rows of a tile, and outputs of half a block

inline TileConfig integer_tile_config(int64_t rows) {
    TileConfig config{};
    config.palette = 1;
    const int64_t tile_rows[5] = {rows, rows, rows, kGroup / 4, kGroup / 4};
    for (int t = 0; t < 5; ++t) {
        config.rows[t] = static_cast<uint8_t>(tile_rows[t]);
        config.column_bytes[t] = static_cast<uint16_t>(t == 2 ? kGroup : kLine);
    }
    return config;
}

// Eight lines of bytes from four of nibbles, for both halves of a block.
inline void unpack_nibbles(const char* w, uint8_t* lines) {
    constexpr int kStep = static_cast<int>(sizeof(Bytes));
    for (int half = 0; half < 2; ++half, w += 4 * kLine, lines += 8 * kLine) {
        for (int at = 0; at < 4 * kLine; at += kStep) {
            const Bytes raw = dload(w + at), low = dlow(raw), high = dhigh(raw);
            __builtin_memcpy(lines + at, &low, sizeof low);
            __builtin_memcpy(lines + 4 * kLine + at, &high, sizeof high);
        }
    }
}

// Adds a group's products to `sums`, [row][32]; `dots` are those of unsigned bytes, [row][32].
template <bool kFour>
inline void scale_dots(const int32_t* dots, const char* x, const char* half, int64_t rows, float* sums) {
    for (int column = 0; column < kIntegerColumns; column += W) {
        const Vec scale = vload_half(half + column * 2);
        const Vec minimum = kFour ? vload_half(half + (kIntegerColumns + column) * 2) : vzero();
        for (int64_t r = 0; r < rows; ++r) {
            const char* record = x + r * kRecord;
            Dots exact;
            __builtin_memcpy(&exact, dots + r * kIntegerColumns + column, sizeof exact);
            if (!kFour) exact = dadd(exact, dset(word_at(record + kGroup + 4)));
            float* at = sums + r * kIntegerColumns + column;
            Vec sum = vfma(vmul(dfloat(exact), scale), vset(float_at(record + kGroup)), vload(at));
            if (kFour) sum = vfma(minimum, vset(float_at(record + kGroup + 4)), sum);
            vstore(at, sum);
        }
    }
}

template <bool kFour> void multiply_integer_tiles(const IntegerLinearArgs& a, int64_t row, int64_t rows, int64_t block) {
    constexpr int64_t kBytes = kFour ? kGroupBytes4 : kGroupBytes8, kLines = kFour ? 4 : 8;
    alignas(64) float sums[kTileRows * kIntegerColumns] = {};
    alignas(64) int32_t dots[kTileRows * kIntegerColumns];
    alignas(64) uint8_t bytes[2 * 8 * kLine];
    const char* x = a.x + row * a.groups * kRecord;
    const char* w = a.weight + block * a.groups * kBytes;
    for (int64_t g = 0; g < a.groups; ++g, x += rows * kRecord, w += kBytes) {
        const void* lines = w;
        if constexpr (kFour) {
            unpack_nibbles(w, bytes);
            tile_fence();
            lines = bytes;
        }
        OCTAVO_TILE_ZERO(0);
        OCTAVO_TILE_ZERO(1);
        OCTAVO_TILE_LOAD(2, x, kRecord);
        OCTAVO_TILE_LOAD(3, lines, kLine);
        OCTAVO_TILE_LOAD(4, static_cast<const char*>(lines) + 8 * kLine, kLine);
        OCTAVO_TILE_DOT_BYTES(0, 2, 3);
        OCTAVO_TILE_DOT_BYTES(1, 2, 4);
        OCTAVO_TILE_STORE(0, dots, kIntegerColumns * 4);
        OCTAVO_TILE_STORE(1, dots + kTileRows, kIntegerColumns * 4);
        scale_dots<kFour>(dots, x, w + 2 * kLines * kLine, rows, sums);
    }
    for (int64_t r = 0; r < rows; ++r) {
        for (int column = 0; column < kIntegerColumns; column += W) {
            store_integer(a, row + r, block * kIntegerColumns + column, vload(sums + r * kIntegerColumns + column));
        }
    }
}

void linear_integer_amx(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block0, int64_t block1) {
    const auto multiply = a.four ? multiply_integer_tiles<true> : multiply_integer_tiles<false>;
    int64_t configured = 0;
    for (int64_t block = block0; block < block1; ++block) {
        for (int64_t tile = tile0; tile < tile1; ++tile) {
            const int64_t row = tile_row(a.rows, a.tiles, tile), rows = tile_row(a.rows, a.tiles, tile + 1) - row;
            if (rows != configured) {
                tile_configure(integer_tile_config(rows));
                configured = rows;
            }
            multiply(a, row, rows, block);
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
