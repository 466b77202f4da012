// Which integer kernels go with an instruction set on this machine. The instruction set itself has been found usable, and with
// it the registers; dot product instructions are asked for here.
#include <stdexcept>

#include "integer_weight.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {

namespace {

#if defined(__x86_64__)
struct Vnni {
    bool avx2, avx512;
};

Vnni vnni() {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    Vnni found{false, false};
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) found.avx512 = c >> 11 & 1;
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) found.avx2 = a >> 4 & 1;
    return found;
}
#endif

} // namespace

std::vector<const IntegerKernels*> integer_kernels(const std::string& isa) {
    std::vector<const IntegerKernels*> found{integer_generic()};
#if defined(__x86_64__)
    if (isa == "generic" || isa == "amx_emulated") return found;
    [[maybe_unused]] const Vnni has = vnni();
    [[maybe_unused]] const bool wide = isa != "avx2";
#ifdef OCTAVO_HAVE_INTEGER_AVX2
    if (!wide) found.push_back(integer_avx2());
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX2_VNNI
    if (!wide && has.avx2) found.push_back(integer_avx2_vnni());
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX512
    if (wide) found.push_back(integer_avx512());
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX512_VNNI
    if (wide && has.avx512) found.push_back(integer_avx512_vnni());
#endif
#endif
    return found;
}

const IntegerKernels* find_integer_kernels(const std::string& isa, const std::string& name) {
    const std::vector<const IntegerKernels*> usable = integer_kernels(isa);
    if (name == "auto") return usable.back();
    std::string names = "auto";
    for (const IntegerKernels* kernels : usable) {
        if (name == kernels->name) return kernels;
        names += std::string(", ") + kernels->name;
    }
    throw std::invalid_argument("integer kernels " + name + " cannot be used with " + isa + "; these can: " + names);
}

} // namespace octavo
