// Products with integer weights for AVX2, FMA and F16C.
#include <immintrin.h>

#include "integer.hpp"

namespace octavo {
namespace {

#include "simd_avx2.hpp"
// clang-format off
#include "simd_integer_avx2.hpp"
#include "kernels_of_integers.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_table("avx2");

} // namespace

const IntegerKernels* integer_avx2() { return &kTable; }

} // namespace octavo
