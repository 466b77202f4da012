// Products with integer weights for AVX2 with AVX-VNNI.
#include <immintrin.h>

#include "integer.hpp"
#include "kernels.hpp"

#define OCTAVO_VNNI
namespace octavo {
namespace {

#include "simd_avx2.hpp"
// clang-format off
#include "simd_integer_avx2.hpp"
#include "kernels_of_integers.hpp"
#include "kernels_kv.hpp"
#include "kernels_attention.hpp"
#include "kernels_tiles.hpp"
#include "kernels_compact_stream.hpp"
#include "simd_fixed_avx2.hpp"
#include "kernels_fixed.hpp"
#include "kernels_ceilings.hpp"
#include "kernels_beside.hpp"
// clang-format on

constexpr IntegerKernels kTable = with_what_is_beside(integer_table("avx2_vnni"));

} // namespace

const IntegerKernels* integer_avx2_vnni() { return &kTable; }

} // namespace octavo
