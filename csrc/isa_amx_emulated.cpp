// Kernels for any processor, matrix products on emulated AMX tiles: tests of that code where there is no AMX.

#include "kernels.hpp"

namespace octavo {
namespace {

#include "simd_generic.hpp"
// clang-format off
#include "kernels_of_rows.hpp"
#include "kernels_widened.hpp"
#include "amx_tiles_emulated.hpp"
#include "simd_compact_generic.hpp"
#include "kernels_compact_stream.hpp"
#include "kernels_compact.hpp"
#include "kernels_amx.hpp"
#include "kernels_kv.hpp"
#include "kernels_attention.hpp"
#include "kernels_attention_amx.hpp"
#include "kernels_logits.hpp"
#include "kernels_ceilings.hpp"
#include "kernels_table.hpp"
// clang-format on

constexpr KernelTable kTable = with_tiles(make_table("amx_emulated", Activation::bf16_padded));

} // namespace

const KernelTable* amx_emulated_kernels() { return &kTable; }

} // namespace octavo
