// Sizes in units. Not for the files of instruction sets, which share no functions: see kernels.hpp.
#pragma once

#include <cstdint>

namespace octavo {

constexpr int64_t kCacheLine = 64; // bytes

constexpr int64_t divide_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
constexpr int64_t round_up(int64_t value, int64_t unit) { return divide_up(value, unit) * unit; }
// Of numbers of 4 bytes, so many that they are whole cache lines.
constexpr int64_t whole_lines(int64_t count) { return round_up(count, kCacheLine / 4); }

} // namespace octavo
