// Kernels for any processor: the baseline of the compiler and its portable vectors.

#include "kernels.hpp"

namespace octavo {
namespace {

#include "simd_generic.hpp"
// clang-format off
#include "kernels_of_rows.hpp"
#include "kernels_widened.hpp"
#include "kernels_kv.hpp"
#include "kernels_attention.hpp"
#include "kernels_logits.hpp"
#include "kernels_ceilings.hpp"
#include "kernels_table.hpp"
// clang-format on

constexpr KernelTable kTable = make_table("generic", Activation::fp32);

} // namespace

const KernelTable* generic_kernels() { return &kTable; }

} // namespace octavo
