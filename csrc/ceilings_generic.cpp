// Ceilings of any processor.

#include "ceilings.hpp"
#include "integer.hpp"

namespace octavo {
namespace {

// clang-format off
#include "simd_generic.hpp"
#include "ceilings_sink.hpp"
#include "kernels_ceilings.hpp"
#include "kernels_math.hpp"
#include "simd_integer_generic.hpp"
#include "kernels_ceilings_integer.hpp"
// clang-format on

constexpr VectorCeilings kVectors = vector_ceilings("multiply and add");
constexpr PeakKernel kInt8 = int8_peak("16-bit multiply");

} // namespace

const VectorCeilings* generic_ceilings() { return &kVectors; }
const PeakKernel* generic_int8_peak() { return &kInt8; }

} // namespace octavo
