// Products with integer weights on AMX-INT8 tiles, for many rows; all else as AVX-512 with VNNI.
#include <immintrin.h>

#include "integer.hpp"

#define OCTAVO_VNNI
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
#include "amx_tiles_native.hpp"
#include "kernels_integer_amx.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_amx_table("amx_int8", integer_avx512_vnni);

} // namespace

const IntegerKernels* integer_amx() { return &kTable; }

} // namespace octavo
