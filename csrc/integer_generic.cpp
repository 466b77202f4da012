// Products with integer weights for any processor.

#include "integer.hpp"

namespace octavo {
namespace {

#include "simd_generic.hpp"
// clang-format off
#include "simd_integer_generic.hpp"
#include "kernels_of_integers.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_table("generic");

} // namespace

const IntegerKernels* integer_generic() { return &kTable; }

} // namespace octavo
