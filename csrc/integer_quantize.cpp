#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "integer_weight.hpp"

namespace octavo {

namespace {

constexpr int64_t kGroupsOfUnit = 8192; // a multiple of every kernel's groups at once

int64_t units_of(int64_t groups) { return (groups + kGroupsOfUnit - 1) / kGroupsOfUnit; }

} // namespace

QuantizeProblem quantize_groups(const QuantizeWeightsArgs& args, int64_t groups, const IntegerKernels* kernels, int num_threads) {
    std::atomic<int64_t> next{0};
    std::atomic<QuantizeProblem> problem{QuantizeProblem::none};
    const auto work = [&] {
        for (int64_t unit; problem.load() == QuantizeProblem::none && (unit = next++) < units_of(groups);) {
            const int64_t group = unit * kGroupsOfUnit;
            const auto found = kernels->quantize_weights(args, group, std::min(groups, group + kGroupsOfUnit));
            if (found != QuantizeProblem::none) problem = found;
        }
    };
    {
        std::vector<std::jthread> others;
        for (int64_t i = 1; i < std::min<int64_t>(num_threads, units_of(groups)); ++i) others.emplace_back(work);
        work();
    }
    return problem;
}

} // namespace octavo
