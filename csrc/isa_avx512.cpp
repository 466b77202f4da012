// Kernels for AVX-512 F, BW, DQ and VL. Compiled with that instruction set's flags; called only after cpu_features has found it usable.
#include <immintrin.h>

#include "integer.hpp"
#include "kernels.hpp"

namespace octavo {
namespace {

#include "simd_avx512.hpp"
// clang-format off
#include "kernels_of_rows.hpp"
#include "kernels_widened.hpp"
#include "simd_compact_avx512.hpp"
#include "kernels_compact_stream.hpp"
#include "kernels_compact.hpp"
#include "simd_fixed_avx512.hpp"
#include "kernels_fixed.hpp"
#include "kernels_fixed_rows.hpp"
#include "kernels_kv.hpp"
#include "kernels_attention.hpp"
#include "kernels_logits.hpp"
#include "kernels_ceilings.hpp"
#include "kernels_table.hpp"
// clang-format on

constexpr KernelTable kTable = with_fixed(make_table("avx512", Activation::fp32, &kPairsPeak));

} // namespace

const KernelTable* avx512_kernels() { return &kTable; }

} // namespace octavo
