// Kernels for AVX-512 with BF16 dot products. Compiled with that instruction set's flags; called only after cpu_features has found it usable.
#include <immintrin.h>

#include "kernels.hpp"

#define OCTAVO_DOT_BF16
namespace octavo {
namespace {

#include "simd_avx512_bf16.hpp"
// clang-format off
#include "kernels_of_rows.hpp"
#include "simd_compact_avx512.hpp"
#include "kernels_compact_stream.hpp"
#include "kernels_compact.hpp"
#include "kernels_compact_tiles.hpp"
#include "kernels_kv.hpp"
#include "kernels_attention.hpp"
#include "kernels_logits.hpp"
#include "kernels_ceilings.hpp"
#include "kernels_table.hpp"
// clang-format on

constexpr KernelTable kTable = with_compact(make_table("avx512_bf16", Activation::bf16, &kDotPeak), linear_compact);

} // namespace

const KernelTable* avx512_bf16_kernels() { return &kTable; }

} // namespace octavo
