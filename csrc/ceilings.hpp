// What this machine can do at most: kernels of nothing but loads, or of nothing but products of what is in registers.
//
// Like kernels.hpp, the part that translation units of instruction sets see is plain data, for the same reason.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace octavo {

constexpr int64_t kReadStep = 1024; // a read kernel takes multiples of so many bytes

// One instruction, or the few that stand for it, on independent registers. A product and a sum are two operations.
struct PeakKernel {
    const char* instruction;
    double operations;           // of one round
    float (*run)(int64_t rounds); // the result is only there so that nothing is left out
};

struct VectorCeilings {
    float (*read)(const char* data, int64_t bytes); // aligned to 64; floats
    PeakKernel fp32;
};

} // namespace octavo
