// Ceilings of AVX2 with FMA.
#include <immintrin.h>

#include "ceilings.hpp"
#include "integer.hpp"

namespace octavo {
namespace {

// clang-format off
#include "simd_avx2.hpp"
#include "ceilings_sink.hpp"
#include "kernels_ceilings.hpp"
#include "simd_integer_avx2.hpp"
#include "kernels_ceilings_integer.hpp"
// clang-format on

constexpr VectorCeilings kVectors = vector_ceilings("vfmadd ymm");
constexpr PeakKernel kInt8 = int8_peak("vpmaddubsw ymm");
constexpr PeakKernel kPairs = pairs_peak("vpmaddwd ymm");

} // namespace

const VectorCeilings* avx2_ceilings() { return &kVectors; }
const PeakKernel* avx2_int8_peak() { return &kInt8; }
const PeakKernel* avx2_pairs_peak() { return &kPairs; }

} // namespace octavo
