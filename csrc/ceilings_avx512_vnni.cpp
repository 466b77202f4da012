// Integer peak of AVX-512 with VNNI.
#include <immintrin.h>

#include "ceilings.hpp"
#include "integer.hpp"

#define OCTAVO_VNNI
namespace octavo {
namespace {

// clang-format off
#include "simd_avx512.hpp"
#include "simd_integer_avx512.hpp"
#include "kernels_ceilings_integer.hpp"
// clang-format on

constexpr PeakKernel kInt8 = int8_peak("vpdpbusd zmm");
constexpr PeakKernel kPairs = pairs_peak("vpdpwssd zmm");

} // namespace

const PeakKernel* avx512_vnni_peak() { return &kInt8; }
const PeakKernel* avx512_vnni_pairs_peak() { return &kPairs; }

} // namespace octavo
