// Kernels for AVX-512 with BF16, matrix products on AMX tiles. Compiled with that instruction set's flags; called only after cpu_features has found it usable.
#include <immintrin.h>

#include "kernels.hpp"

namespace octavo {
namespace {

#include "simd_avx512.hpp"
// clang-format off
#include "kernels_of_rows.hpp"
#include "kernels_widened.hpp"
#include "amx_tiles_native.hpp"
#include "simd_compact_avx512.hpp"
#include "kernels_compact_stream.hpp"
#include "kernels_compact.hpp"
#include "kernels_amx.hpp"
#include "kernels_kv.hpp"
#include "kernels_attention.hpp"
#include "kernels_attention_amx.hpp"
#include "kernels_logits.hpp"
#include "kernels_ceilings_amx.hpp"
#include "kernels_ceilings.hpp"
#include "kernels_table.hpp"
// clang-format on

constexpr KernelTable kTable = with_tiles(make_table("amx", Activation::bf16_padded, &kTilesPeak<false>));

} // namespace

const KernelTable* amx_kernels() { return &kTable; }

} // namespace octavo
