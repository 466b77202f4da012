// Ceilings of AVX-512.
#include <immintrin.h>

#include "ceilings.hpp"
#include "integer.hpp"

namespace octavo {
namespace {

// clang-format off
#include "simd_avx512.hpp"
#include "ceilings_sink.hpp"
#include "kernels_ceilings.hpp"
#include "simd_integer_avx512.hpp"
#include "kernels_ceilings_integer.hpp"
// clang-format on

constexpr VectorCeilings kVectors = vector_ceilings("vfmadd zmm");
constexpr PeakKernel kInt8 = int8_peak("vpmaddwd zmm");
constexpr PeakKernel kPairs = pairs_peak("vpmaddwd zmm");

} // namespace

const VectorCeilings* avx512_ceilings() { return &kVectors; }
const PeakKernel* avx512_int8_peak() { return &kInt8; }
const PeakKernel* avx512_pairs_peak() { return &kPairs; }

} // namespace octavo
