// Products with integer weights on emulated AMX-INT8 tiles: tests of that code where there is no AMX.

#include "integer.hpp"

namespace octavo {
namespace {

#include "simd_generic.hpp"
// clang-format off
#include "simd_integer_generic.hpp"
#include "kernels_of_integers.hpp"
#include "amx_tiles_emulated.hpp"
#include "kernels_integer_amx.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_amx_table("amx_int8_emulated", integer_generic);

} // namespace

const IntegerKernels* integer_amx_emulated() { return &kTable; }

} // namespace octavo
