// Integer peak of AVX-VNNI.
#include <immintrin.h>

#include "ceilings.hpp"
#include "integer.hpp"

#define OCTAVO_VNNI
namespace octavo {
namespace {

// clang-format off
#include "simd_avx2.hpp"
#include "simd_integer_avx2.hpp"
#include "kernels_ceilings_integer.hpp"
// clang-format on

constexpr PeakKernel kInt8 = int8_peak("vpdpbusd ymm");
constexpr PeakKernel kPairs = pairs_peak("vpdpwssd ymm");

} // namespace

const PeakKernel* avx2_vnni_peak() { return &kInt8; }
const PeakKernel* avx2_vnni_pairs_peak() { return &kPairs; }

} // namespace octavo
