// Products with integer weights for AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#include "integer.hpp"

namespace octavo {
namespace {

#include "simd_avx512.hpp"
// clang-format off
#include "simd_integer_avx512.hpp"
#include "kernels_of_integers.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_table("avx512");

} // namespace

const IntegerKernels* integer_avx512() { return &kTable; }

} // namespace octavo
