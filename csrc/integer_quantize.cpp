#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "integer_weight.hpp"
#include "sizes.hpp"

namespace octavo {

namespace {

constexpr int64_t kGroupsOfUnit = 8192; // a multiple of every kernel's groups at once

} // namespace

QuantizeProblem quantize_groups(const QuantizeWeightsArgs& args, int64_t groups, const IntegerKernels* kernels, int num_threads) {
    const int64_t units = divide_up(groups, kGroupsOfUnit);
    std::atomic<int64_t> next{0};
    std::atomic<QuantizeProblem> problem{QuantizeProblem::none};
    const auto work = [&] {
        for (int64_t unit; problem.load() == QuantizeProblem::none && (unit = next++) < units;) {
            const int64_t group = unit * kGroupsOfUnit;
            const auto found = kernels->quantize_weights(args, group, std::min(groups, group + kGroupsOfUnit));
            if (found != QuantizeProblem::none) problem = found;
        }
    };
    {
        std::vector<std::jthread> others;
        for (int64_t i = 1; i < std::min<int64_t>(num_threads, units); ++i) others.emplace_back(work);
        work();
    }
    return problem;
}

} // namespace octavo
