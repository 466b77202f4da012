// Rows in tiles; plain data like kernels.hpp, and for the same reason.
#pragma once

#include <stdint.h>

namespace octavo {

// Tiles of nearly equal numbers of rows: the first ones have one more.
struct EvenTiles {
    int64_t size, larger;
    constexpr EvenTiles(int64_t rows, int64_t tiles) : size(rows / tiles), larger(rows % tiles) {}
    constexpr int64_t begin(int64_t tile) const { return tile * size + (tile < larger ? tile : larger); }
    constexpr int64_t rows(int64_t tile) const { return size + (tile < larger); }
};

} // namespace octavo
