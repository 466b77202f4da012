// What is fetched into the caches while something else is computed; plain data like kernels.hpp, and for the same reason.
#pragma once

#include <stdint.h>

namespace octavo {

// Memory that ops to come will read, in pieces of `bytes`. Products take the next piece as they go and bring it into the caches:
// where their arithmetic leaves memory idle, or where what is read in small pieces later would keep memory less busy. One thread's:
// a counter that two of them take from costs more than many a product of a tile.
struct alignas(64) Pieces {
    const char* const* data;
    int64_t count, bytes, next;
};

} // namespace octavo
