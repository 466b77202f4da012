// Which integer kernels go with an instruction set on this machine. The instruction set itself has been found usable, and with
// it the registers; dot product instructions are asked for here.
#include <stdexcept>

#include "integer_weight.hpp"
#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>

#include "in_child.hpp"
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

// Multiplies 16 rows by a block of weights in a child process: some hypervisors announce tiles that do not work. That tiles
// may be used at all has been found by whoever chose the instruction set.
bool probe_integer_tiles() {
#ifdef OCTAVO_HAVE_INTEGER_AMX
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 25 & 1)) return false;
    return true_in_child([] {
        alignas(64) char weight[group_bytes(8)];
        alignas(64) float x[kManyRows * kGroup], out[kManyRows * kIntegerColumns];
        char records[kManyRows * record_bytes(8, 1)];
        std::memset(weight, 129, sizeof weight); // values of 1
        const uint16_t one = 0x3C00;
        for (int i = 0; i < kIntegerColumns; ++i) std::memcpy(weight + 16 * kLine + 2 * i, &one, 2);
        for (float& value : x) value = 127.0f;
        integer_amx()->quantize({x, records, kManyRows, 1, 1, false, 8, 1}, 0, 1);
        integer_amx()->linear({records, weight, nullptr, nullptr, out, kManyRows, kIntegerColumns, 1, 1, 8, kIntegerColumns, 1}, 0, 1, 0, 1);
        constexpr float kExpected = 127.0f * kGroup;
        return out[0] == kExpected && out[kManyRows * kIntegerColumns - 1] == kExpected;
    });
#else
    return false;
#endif
}

bool has_integer_tiles() {
    static const bool found = probe_integer_tiles(); // what a process may use does not change
    return found;
}
#endif

} // namespace

std::vector<const IntegerKernels*> integer_kernels(const std::string& isa) {
    std::vector<const IntegerKernels*> found{integer_generic()};
    if (isa == "amx_emulated") found.push_back(integer_amx_emulated());
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
#ifdef OCTAVO_HAVE_INTEGER_AMX
    if (isa == "amx" && has.avx512 && has_integer_tiles()) found.push_back(integer_amx());
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
