// Peaks of AMX-BF16 and AMX-INT8. Called only after cpu_features has asked the system for tiles.
#include <immintrin.h>

#include "ceilings.hpp"
#include "kernels.hpp"

namespace octavo {
namespace {

#include "amx_tiles_native.hpp"

template <bool kBytes> float multiply_tiles(int64_t rounds) {
    alignas(64) static const uint16_t operand[kTileElements] = {};
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

constexpr PeakKernel kPeak{"tdpbf16ps", 4.0 * 2 * 16 * 16 * 32, multiply_tiles<false>};
constexpr PeakKernel kInt8{"tdpbsud", 4.0 * 2 * 16 * 16 * 64, multiply_tiles<true>};

} // namespace

const PeakKernel* amx_peak() { return &kPeak; }
const PeakKernel* amx_int8_peak() { return &kInt8; }

} // namespace octavo
