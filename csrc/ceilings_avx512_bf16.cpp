// Peak of AVX-512 with BF16 dot products.
#include <immintrin.h>

#include "ceilings.hpp"

namespace octavo {
namespace {

// clang-format off
#include "simd_avx512_bf16.hpp"
#include "ceilings_sink.hpp"
// clang-format on

constexpr int kChains = 16;

float multiply_pairs(int64_t rounds) {
    const Vec weights = vset(0.5f); // as pairs of bf16: 0 and 0.5
    Vec sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = vset(static_cast<float>(c));
    for (int64_t r = 0; r < rounds; ++r) {
        for (Vec& sum : sums) sum = vdot(sum, 0x3F003F00, weights);
    }
    for (int c = 1; c < kChains; ++c) sums[0] = vadd(sums[0], sums[c]);
    return first_of(sums[0]);
}

constexpr PeakKernel kPeak{"vdpbf16ps zmm", 4.0 * W * kChains, multiply_pairs};

} // namespace

const PeakKernel* avx512_bf16_peak() { return &kPeak; }

} // namespace octavo
