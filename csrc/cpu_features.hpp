// Which instruction sets this processor, this system and this build allow, and why not where they do not.
#pragma once

#include <string>
#include <vector>

#include "integer.hpp"
#include "kernels.hpp"

namespace octavo {

struct InstructionSet {
    const char* name;
    bool usable;
    std::string reason;         // why not; empty where usable
    const KernelTable* kernels; // null where not compiled in or not usable
};

// From the slowest to the fastest on this processor; the last usable one is what "auto" means. amx_emulated is not among them.
std::vector<InstructionSet> instruction_sets();

// The kernels of `name`, or of the most capable set for "auto". Throws std::invalid_argument with the reason.
const KernelTable* find_kernels(const std::string& name);

// The integer kernels that may run beside the kernels of an instruction set, from the least to the most capable.
std::vector<const IntegerKernels*> integer_kernels(const std::string& isa);

// One of those by name, or the most capable for "auto". Throws std::invalid_argument where there is none of that name.
const IntegerKernels* find_integer_kernels(const std::string& isa, const std::string& name);

// The names of Tuning, in its order.
constexpr const char* kTunings[] = {"common", "zen5", "zen4"};

// The one of that name, or what suits this processor for "auto". Throws std::invalid_argument.
Tuning find_tuning(const std::string& name);

} // namespace octavo
