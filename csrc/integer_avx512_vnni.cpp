// Products with integer weights for AVX-512 with VNNI.
#include <immintrin.h>

#include "integer.hpp"
#include "kernels.hpp"

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
#include "kernels_kv.hpp"
#include "kernels_attention.hpp"
#include "kernels_quantize.hpp"
#include "kernels_tiles.hpp"
#include "kernels_compact_stream.hpp"
#include "simd_fixed_avx512.hpp"
#include "kernels_fixed.hpp"
#include "kernels_beside.hpp"
// clang-format on

constexpr IntegerKernels kTable = with_what_is_beside(integer_table("avx512_vnni"));

} // namespace

const IntegerKernels* integer_avx512_vnni() { return &kTable; }

} // namespace octavo
