// Measures ceilings with a pool of threads like that of a device. Of many short runs the best counts: whatever else the machine
// does can only slow one down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ceilings.hpp"

namespace octavo {

// The threads of a device.
struct Threads {
    int count;
    const std::vector<int>& cores; // one for each to be pinned to, or empty
};

// Bytes a second that all threads together read from a memory of `bytes`, measured for about `seconds`.
double measure_read(const std::string& isa, Threads threads, int64_t bytes, double seconds);

// Operations a second of all threads together.
double measure_peak(const PeakKernel& kernel, Threads threads, double seconds);

// What multiplies on an instruction set and beside it: "fp32", "bf16" (widened where there is nothing better) or "int8". Throws
// std::invalid_argument for other arithmetic and for what this machine cannot run.
const PeakKernel& peak_kernel(const std::string& isa, const std::string& integer_kernels, const std::string& arithmetic);

} // namespace octavo
