// Products with integer weights for any processor.

#include "integer.hpp"

namespace octavo {
namespace {

#include "simd_generic.hpp"
// clang-format off
#include "kernels_math.hpp"
#include "kernels_pieces.hpp"
#include "kernels_outputs.hpp"
#include "simd_integer_generic.hpp"
#include "kernels_groups.hpp"
#include "kernels_records.hpp"
#include "kernels_dots.hpp"
#include "kernels_pairs.hpp"
#include "kernels_integer.hpp"
#include "kernels_quantize.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_table("generic");

} // namespace

const IntegerKernels* integer_generic() { return &kTable; }

} // namespace octavo
