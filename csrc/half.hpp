// Half precision numbers; like kernels.hpp, and for the same reason.
#pragma once

#include <stdint.h>

namespace octavo {

// Never a function of its own, as units of several instruction sets use it.
inline __attribute__((always_inline)) float half_to_float(const void* p) {
    uint16_t half;
    __builtin_memcpy(&half, p, sizeof half);
    const uint32_t magnitude = half & 0x7fffu, sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    bits += magnitude >= 0x7c00u ? 112u << 23 : 0;
    // A subnormal has no hidden bit: give it one and subtract it again.
    const uint32_t more = bits + (1u << 23);
    float fixed;
    __builtin_memcpy(&fixed, &more, sizeof fixed);
    fixed -= 6.103515625e-05f;
    uint32_t subnormal;
    __builtin_memcpy(&subnormal, &fixed, sizeof subnormal);
    bits = (magnitude < 0x400u ? subnormal : bits) | sign;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// To nearest even; what is beyond its range becomes infinite, NaN stays NaN. Without a branch, so that loops become vectors.
inline __attribute__((always_inline)) uint16_t float_to_half(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    // A sum with one half has a subnormal's bits at its end, rounded.
    float sum;
    __builtin_memcpy(&sum, &magnitude, sizeof sum);
    sum += 0.5f;
    uint32_t subnormal;
    __builtin_memcpy(&subnormal, &sum, sizeof subnormal);
    subnormal -= 126u << 23;
    uint32_t half = magnitude < 113u << 23 ? subnormal : normal;
    half = magnitude >= 143u << 23 ? 0x7c00u : half;
    half = magnitude > 255u << 23 ? 0x7e00u : half;
    return static_cast<uint16_t>(half | sign);
}

} // namespace octavo
