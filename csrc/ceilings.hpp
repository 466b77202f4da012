// What this machine can do at most: kernels of nothing but loads, or of nothing but products of what is in registers.
//
// Like kernels.hpp, the part that translation units of instruction sets see is plain data, for the same reason.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace octavo {

constexpr int64_t kReadStep = 1024; // a read kernel takes multiples of so many bytes

// One instruction, or the few that stand for it, on independent registers. A product and a sum are two operations.
struct PeakKernel {
    const char* instruction;
    double operations;           // of one round
    float (*run)(int64_t rounds); // the result is only there so that nothing is left out
};

struct VectorCeilings {
    float (*read)(const char* data, int64_t bytes); // aligned to 64; floats
    PeakKernel fp32;
};

const VectorCeilings* generic_ceilings();
const PeakKernel* generic_int8_peak();
#ifdef OCTAVO_HAVE_CEILINGS_AVX2
const VectorCeilings* avx2_ceilings();
const PeakKernel* avx2_int8_peak();
const PeakKernel* avx2_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX2_VNNI
const PeakKernel* avx2_vnni_peak();
const PeakKernel* avx2_vnni_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512
const VectorCeilings* avx512_ceilings();
const PeakKernel* avx512_int8_peak();
const PeakKernel* avx512_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512_VNNI
const PeakKernel* avx512_vnni_peak();
const PeakKernel* avx512_vnni_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512_BF16
const PeakKernel* avx512_bf16_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AMX
const PeakKernel* amx_peak();
const PeakKernel* amx_int8_peak();
#endif

} // namespace octavo
