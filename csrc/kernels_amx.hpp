// bf16 matrix products on tiles: 32 rows x 32 columns in four accumulators, fewer rows by a smaller configuration.
// Included inside the instruction set's own namespace, after a header that defines the tile instructions.
//
// Tiles 0-3 accumulate [rows 0-15 | rows 16-31] x [columns 0-15 | columns 16-31]; 4, 5 hold x; 6, 7 hold weights. x rows are
// zero up to a multiple of kDepthStep. A row's sums do not depend on how many rows its tile has.

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

// `sums` is [32][32].
inline void multiply_tiles(const LinearArgs& a, int64_t row, bool both, const uint16_t* w, float* sums) {
    const uint16_t* x = static_cast<const uint16_t*>(a.x) + row * a.x_stride;
    const int64_t stride = a.x_stride * 2;
    OCTAVO_TILE_ZERO(0);
    OCTAVO_TILE_ZERO(1);
    OCTAVO_TILE_ZERO(2);
    OCTAVO_TILE_ZERO(3);
    for (int64_t k = 0; k < a.k; k += kDepthStep, w += 2 * kTileElements) {
        OCTAVO_TILE_LOAD(6, w, 64);
        OCTAVO_TILE_LOAD(7, w + kTileElements, 64);
        OCTAVO_TILE_LOAD(4, x + k, stride);
        OCTAVO_TILE_DOT(0, 4, 6);
        OCTAVO_TILE_DOT(1, 4, 7);
        if (both) {
            OCTAVO_TILE_LOAD(5, x + 16 * a.x_stride + k, stride);
            OCTAVO_TILE_DOT(2, 5, 6);
            OCTAVO_TILE_DOT(3, 5, 7);
        }
    }
    OCTAVO_TILE_STORE(0, sums, kColumnBlock * 4);
    OCTAVO_TILE_STORE(1, sums + 16, kColumnBlock * 4);
    if (both) {
        OCTAVO_TILE_STORE(2, sums + 16 * kColumnBlock, kColumnBlock * 4);
        OCTAVO_TILE_STORE(3, sums + 16 * kColumnBlock + 16, kColumnBlock * 4);
    }
}

void linear_amx(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    alignas(64) float sums[32 * kColumnBlock];
    int64_t configured = 0;
    for (int64_t block = block0; block < block1; ++block) {
        const uint16_t* w = static_cast<const uint16_t*>(a.weight) + block * bf16_block_elements(a.k);
        for (int64_t row = row0; row < row1; row += 32) {
            int64_t rows = min64(32, row1 - row);
            if (rows != configured) {
                tile_configure(tile_config(min64(rows, 16), rows - 16));
                configured = rows;
            }
            multiply_tiles(a, row, rows > 16, w, sums);
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t c = 0; c < kColumnBlock; c += W) {
                    store_output(a, row + r, block * kColumnBlock + c, vload(sums + r * kColumnBlock + c));
                }
            }
        }
    }
    tile_release();
}
