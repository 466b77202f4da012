// Kernels for any processor, matrix products on emulated AMX tiles: tests of that code where there is no AMX.

#include "kernels.hpp"

namespace octavo {
namespace {

#include "simd_generic.hpp"
// clang-format off
#include "kernels_math.hpp"
#include "kernels_pieces.hpp"
#include "kernels_outputs.hpp"
#include "kernels_rows.hpp"
#include "kernels_tiles.hpp"
#include "kernels_linear.hpp"
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
#include "kernels_table.hpp"
// clang-format on

constexpr KernelTable amx_table() {
    KernelTable table = make_table("amx_emulated", Activation::bf16_padded);
    table.rows_of_chunk = 32 * kTilesAtOnce;
    table.rows_of_part = 256; // weights pass sooner
    table.linear_bf16 = linear_amx;
    table.attention_scratch = attention_scratch_tiles;
    table.attention = attention_tiles;
    return with_compact(table, linear_compact);
}

constexpr KernelTable kTable = amx_table();

} // namespace

const KernelTable* amx_emulated_kernels() { return &kTable; }

} // namespace octavo
