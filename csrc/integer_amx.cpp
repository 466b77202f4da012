// Products with integer weights on AMX-INT8 tiles, for many rows; all else as AVX-512 with VNNI.
#include <immintrin.h>

#include "integer.hpp"

#define OCTAVO_VNNI
namespace octavo {
namespace {

#include "simd_avx512.hpp"
// clang-format off
#include "simd_integer_avx512.hpp"
#include "kernels_of_integers.hpp"
#include "amx_tiles_native.hpp"
#include "kernels_ceilings_amx.hpp"
#include "kernels_integer_amx.hpp"
// clang-format on

constexpr IntegerKernels kTable = integer_amx_table("amx_int8", integer_avx512_vnni, &kTilesPeak<true>);

} // namespace

const IntegerKernels* integer_amx() { return &kTable; }

} // namespace octavo
