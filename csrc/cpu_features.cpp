#include "cpu_features.hpp"

#include <iterator>
#include <stdexcept>
#include <utility>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "in_child.hpp"
#endif

namespace octavo {

namespace {

using Getter = const KernelTable* (*)();

#if defined(__x86_64__)

struct Leaf {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

Leaf cpuid(uint32_t leaf, uint32_t part) {
    Leaf out;
    __get_cpuid_count(leaf, part, &out.a, &out.b, &out.c, &out.d);
    return out;
}

bool is_amd() {
    Leaf zero = cpuid(0, 0);
    return zero.b == 0x68747541 && zero.d == 0x69746E65 && zero.c == 0x444D4163; // "AuthenticAMD"
}

// AMD multiplies bf16 pairs at twice the rate of fp32; Intel outside AMX at half of it (measured), so there avx512 is better.
bool has_fast_dot_products() { return is_amd(); }

uint32_t family() {
    const uint32_t version = cpuid(1, 0).a, base = version >> 8 & 15;
    return base < 15 ? base : base + (version >> 20 & 255);
}

bool has(uint32_t word, int bit) { return word >> bit & 1; }

// The register state that the system saves, or 0 where it does not say.
uint64_t enabled_state() {
    if (!has(cpuid(1, 0).c, 27)) return 0;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return static_cast<uint64_t>(high) << 32 | low;
}

std::string missing(const char* what) { return std::string("the processor has no ") + what; }

std::string avx2_problem() {
    Leaf one = cpuid(1, 0), seven = cpuid(7, 0);
    if (!has(seven.b, 5)) return missing("AVX2");
    if (!has(one.c, 12)) return missing("FMA");
    if (!has(one.c, 29)) return missing("F16C");
    if ((enabled_state() & 0x6) != 0x6) return "the system does not save AVX registers";
    return "";
}

std::string avx512_problem() {
    if (std::string problem = avx2_problem(); !problem.empty()) return problem;
    Leaf seven = cpuid(7, 0);
    if (!has(seven.b, 16) || !has(seven.b, 30) || !has(seven.b, 17) || !has(seven.b, 31)) {
        return missing("AVX-512 F, BW, DQ and VL");
    }
    if ((enabled_state() & 0xE6) != 0xE6) return "the system does not save AVX-512 registers";
    return "";
}

std::string avx512_bf16_problem() {
    if (std::string problem = avx512_problem(); !problem.empty()) return problem;
    return has(cpuid(7, 1).a, 5) ? "" : missing("AVX512-BF16");
}

// Asks the system for the tile state of this process.
bool request_tiles() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Multiplies two tiles in a child process: some hypervisors announce tiles that do not work.
bool probe_tiles() {
#ifdef OCTAVO_HAVE_AMX
    return true_in_child([] {
        alignas(64) uint16_t x[32], weights[2 * kTileElements];
        alignas(64) float out[kColumnBlock] = {};
        for (uint16_t& value : x) value = 0x3F80; // 1.0
        for (uint16_t& value : weights) value = 0x3F80;
        LinearArgs args{x, 32, weights, nullptr, nullptr, out, 1, kColumnBlock, 32, kColumnBlock};
        amx_kernels()->linear_bf16(args, 0, 1, 0, 1);
        return out[0] == 32.0f && out[kColumnBlock - 1] == 32.0f;
    });
#else
    return false;
#endif
}

std::string amx_problem() {
    if (std::string problem = avx512_bf16_problem(); !problem.empty()) return problem;
    Leaf seven = cpuid(7, 0);
    if (!has(seven.d, 24) || !has(seven.d, 22)) return missing("AMX-TILE and AMX-BF16");
    if ((enabled_state() & 0x60000) != 0x60000) return "the system does not save AMX tiles";
    if (!request_tiles()) return "the system refuses this process the use of AMX tiles";
    if (!probe_tiles()) return "a test product on AMX tiles failed";
    return "";
}

// Multiplies 16 rows by a block of weights in a child process: some hypervisors announce tiles that do not work. That tiles
// may be used at all has been found by whoever chose the instruction set.
bool probe_integer_tiles() {
#ifdef OCTAVO_HAVE_INTEGER_AMX
    if (!has(cpuid(7, 0).d, 25)) return false;
    return true_in_child([] {
        alignas(64) char weight[group_bytes(8)];
        alignas(64) float x[kManyRows * kGroup], out[kManyRows * kIntegerColumns];
        char records[kManyRows * record_bytes(8, 1)];
        std::memset(weight, 129, sizeof weight); // values of 1
        const uint16_t one = 0x3C00;
        for (int i = 0; i < kIntegerColumns; ++i) std::memcpy(weight + 16 * kLine + 2 * i, &one, 2);
        for (float& value : x) value = 127.0f;
        const QuantizeArgs rows{.x = x, .out = records, .rows = kManyRows, .groups = 1, .tiles = 1, .bits = 8, .levels = 1};
        integer_amx()->quantize(rows, 0, 1);
        const IntegerLinearArgs product{.x = records,
                                        .weight = weight,
                                        .out = out,
                                        .rows = kManyRows,
                                        .n = kIntegerColumns,
                                        .groups = 1,
                                        .tiles = 1,
                                        .bits = 8,
                                        .out_stride = kIntegerColumns,
                                        .levels = 1};
        integer_amx()->linear(product, 0, 1, 0, 1);
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

InstructionSet describe(const char* name, Getter kernels, const std::string& problem) {
    if (!kernels) return {name, false, "not compiled in: the compiler did not know it", nullptr};
    if (!problem.empty()) return {name, false, problem, nullptr};
    return {name, true, "", kernels()};
}

std::vector<InstructionSet> detect() {
    std::vector<InstructionSet> sets{describe("generic", generic_kernels, "")};
#if defined(__x86_64__)
    Getter avx2 = nullptr, avx512 = nullptr, avx512_bf16 = nullptr, amx = nullptr;
#ifdef OCTAVO_HAVE_AVX2
    avx2 = avx2_kernels;
#endif
#ifdef OCTAVO_HAVE_AVX512
    avx512 = avx512_kernels;
#endif
#ifdef OCTAVO_HAVE_AVX512_BF16
    avx512_bf16 = avx512_bf16_kernels;
#endif
#ifdef OCTAVO_HAVE_AMX
    amx = amx_kernels;
#endif
    sets.push_back(describe("avx2", avx2, avx2_problem()));
    sets.push_back(describe("avx512", avx512, avx512_problem()));
    sets.push_back(describe("avx512_bf16", avx512_bf16, avx512_bf16_problem()));
    if (!has_fast_dot_products()) std::swap(sets[2], sets[3]);
    sets.push_back(describe("amx", amx, amx_problem()));
#endif
    return sets;
}

// As measured. Where nothing was asked for, Zen 5 took twice as long, and so may what nobody has measured.
Tuning tuning_of_processor() {
#if defined(__x86_64__)
    constexpr uint32_t kZen3And4 = 0x19, kZen5 = 0x1A;
    if (is_amd() && family() == kZen3And4) return Tuning::zen4;
    if (is_amd() && family() == kZen5) return Tuning::zen5;
#endif
    return Tuning::common;
}

} // namespace

Tuning find_tuning(const std::string& name) {
    if (name == "auto") return tuning_of_processor();
    std::string names = "auto";
    for (size_t i = 0; i < std::size(kTunings); ++i) {
        if (name == kTunings[i]) return static_cast<Tuning>(i);
        names += std::string(", ") + kTunings[i];
    }
    throw std::invalid_argument("unknown tuning " + name + "; known are " + names);
}

std::vector<InstructionSet> instruction_sets() {
    static const std::vector<InstructionSet> sets = detect(); // what a process may use does not change
    return sets;
}

const KernelTable* find_kernels(const std::string& name) {
    if (name == "amx_emulated") return amx_emulated_kernels();
    const std::vector<InstructionSet> sets = instruction_sets();
    const KernelTable* best = nullptr;
    std::string names = "auto";
    for (const InstructionSet& set : sets) {
        if (set.usable) best = set.kernels;
        if (name != set.name) {
            names += std::string(", ") + set.name;
            continue;
        }
        if (!set.usable) throw std::invalid_argument("instruction set " + name + " cannot be used: " + set.reason);
        return set.kernels;
    }
    if (name == "auto") return best;
    throw std::invalid_argument("unknown instruction set " + name + "; known are " + names);
}

// Integer kernels are asked for beside an instruction set: it has been found usable, and with it the registers.
std::vector<const IntegerKernels*> integer_kernels(const std::string& isa) {
    std::vector<const IntegerKernels*> found{integer_generic()};
    if (isa == "amx_emulated") found.push_back(integer_amx_emulated());
#if defined(__x86_64__)
    if (isa == "generic" || isa == "amx_emulated") return found;
    [[maybe_unused]] const bool wide = isa != "avx2", vnni = has(wide ? cpuid(7, 0).c : cpuid(7, 1).a, wide ? 11 : 4);
#ifdef OCTAVO_HAVE_INTEGER_AVX2
    if (!wide) found.push_back(integer_avx2());
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX2_VNNI
    if (!wide && vnni) found.push_back(integer_avx2_vnni());
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX512
    if (wide) found.push_back(integer_avx512());
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX512_VNNI
    if (wide && vnni) found.push_back(integer_avx512_vnni());
#endif
#ifdef OCTAVO_HAVE_INTEGER_AMX
    if (isa == "amx" && vnni && has_integer_tiles()) found.push_back(integer_amx());
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
