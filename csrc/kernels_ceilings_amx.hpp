// Multiplying tiles as fast as they can be. Included inside the instruction set's own namespace, after a header that defines the tile
// instructions.

template <bool kBytes> float multiply_all_tiles(int64_t rounds) {
    alignas(64) static const char operand[16 * 64] = {};
    alignas(64) float sums[16 * 16];
    TileConfig config{};
    config.palette = 1;
    for (int t = 0; t < 8; ++t) {
        config.rows[t] = 16;
        config.column_bytes[t] = 64;
    }
    tile_configure(config);
    OCTAVO_TILE_ZERO(0);
    OCTAVO_TILE_ZERO(1);
    OCTAVO_TILE_ZERO(2);
    OCTAVO_TILE_ZERO(3);
    OCTAVO_TILE_LOAD(4, operand, 64);
    OCTAVO_TILE_LOAD(5, operand, 64);
    OCTAVO_TILE_LOAD(6, operand, 64);
    OCTAVO_TILE_LOAD(7, operand, 64);
    for (int64_t r = 0; r < rounds; ++r) {
        if constexpr (kBytes) {
            OCTAVO_TILE_DOT_BYTES(0, 4, 6);
            OCTAVO_TILE_DOT_BYTES(1, 4, 7);
            OCTAVO_TILE_DOT_BYTES(2, 5, 6);
            OCTAVO_TILE_DOT_BYTES(3, 5, 7);
        } else {
            OCTAVO_TILE_DOT(0, 4, 6);
            OCTAVO_TILE_DOT(1, 4, 7);
            OCTAVO_TILE_DOT(2, 5, 6);
            OCTAVO_TILE_DOT(3, 5, 7);
        }
    }
    OCTAVO_TILE_STORE(0, sums, 64);
    tile_release();
    return sums[0];
}

template <bool kBytes>
constexpr PeakKernel kTilesPeak{kBytes ? "tdpbsud" : "tdpbf16ps", 4.0 * 2 * 16 * 16 * (kBytes ? 64 : 32), multiply_all_tiles<kBytes>};
