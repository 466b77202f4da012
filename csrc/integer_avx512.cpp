// Products with integer weights for AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#include "integer.hpp"

namespace octavo {
namespace {

#include "simd_avx512.hpp"
// clang-format off
#include "kernels_math.hpp"
#include "kernels_pieces.hpp"
#include "kernels_outputs.hpp"
#include "simd_integer_avx512.hpp"
#include "kernels_groups.hpp"
#include "kernels_records.hpp"
#include "kernels_dots.hpp"
#include "kernels_pairs.hpp"
#include "kernels_integer.hpp"
#include "kernels_quantize.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_table("avx512");

} // namespace

const IntegerKernels* integer_avx512() { return &kTable; }

} // namespace octavo
