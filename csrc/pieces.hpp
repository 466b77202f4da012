// What is fetched into the caches while something else is computed; plain data like kernels.hpp, and for the same reason.
#pragma once

#include <stdint.h>

namespace octavo {

// What kernels are tuned for, beside the instruction set; results are the same. Above all: how a stream of weights comes from
// memory soonest where few rows meet them; see docs/decisions/0042.
enum class Tuning : uint8_t {
    common, // asked for far ahead, into the second-level cache: the first has room for fewer lines under way than memory needs
    zen5,   // far ahead into the first level: requests into the second one are slower than the last level gives lines
    zen4,   // and Zen 3: hardware runs ahead of what is read fast enough for a row or two, and far requests would get in its way
};

// What a thread reads in a row: [begin, end), then on from `after`. Null is what is not known.
struct Reading {
    const char *begin = nullptr, *end = nullptr, *after = nullptr;
};

// Memory that ops to come will read, in pieces of `bytes`. Products take the next piece as they go and bring it into the caches:
// where their arithmetic leaves memory idle, or where what is read in small pieces later would keep memory less busy. One thread's:
// a counter that two of them take from costs more than many a product of a tile.
struct alignas(64) Pieces {
    const char* const* data;
    int64_t count, bytes, next;
    int64_t taken;         // bytes of the next one
    int64_t passes, share; // of integers, so far; bytes for each, so that all are taken by as many as there were for the list before
};

} // namespace octavo
