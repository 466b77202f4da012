// Products with integer weights for AVX2, FMA and F16C.
#include <immintrin.h>

#include "integer.hpp"

namespace octavo {
namespace {

#include "simd_avx2.hpp"
// clang-format off
#include "kernels_math.hpp"
#include "kernels_pieces.hpp"
#include "kernels_outputs.hpp"
#include "simd_integer_avx2.hpp"
#include "kernels_groups.hpp"
#include "kernels_records.hpp"
#include "kernels_dots.hpp"
#include "kernels_integer.hpp"
#include "kernels_quantize.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_table("avx2");

} // namespace

const IntegerKernels* integer_avx2() { return &kTable; }

} // namespace octavo
