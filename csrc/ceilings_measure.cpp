#include "ceilings_measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "cpu_features.hpp"
#include "memory.hpp"
#include "thread_pool.hpp"

namespace octavo {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kUnitsPerThread = 4;
constexpr double kRunSeconds = 5e-4; // of one run of a peak kernel: longer than waking threads, shorter than a time slice

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The least seconds of one run, of at least five.
template <class Run> double best_of(double seconds, const Run& run) {
    const auto begin = Clock::now();
    double best = 1e9;
    for (int i = 0; i < 5 || since(begin) < seconds; ++i) {
        const auto start = Clock::now();
        run();
        best = std::min(best, since(start));
    }
    return best;
}

} // namespace

const PeakKernel& peak_kernel(const std::string& isa, const std::string& integer_kernels, const std::string& arithmetic) {
    const KernelTable& kernels = *find_kernels(isa);
    if (arithmetic == "fp32") return kernels.ceilings->fp32;
    const IntegerKernels& integer = *find_integer_kernels(kernels.isa, integer_kernels);
    // As a device chooses the kernels of bf16 weights.
    if (arithmetic == "bf16") return *(kernels.fix_block && integer.pairs_peak ? integer.pairs_peak : kernels.bf16_peak);
    if (arithmetic == "int8") return *integer.int8_peak;
    throw std::invalid_argument("unknown arithmetic " + arithmetic + "; known are fp32, bf16, int8");
}

double measure_read(const std::string& isa, Threads threads, int64_t bytes, double seconds) {
    const auto read = find_kernels(isa)->ceilings->read;
    const int64_t units = kUnitsPerThread * threads.count;
    const int64_t slice = bytes / units / kReadStep * kReadStep;
    if (slice <= 0) throw std::invalid_argument("too few bytes to share out among the threads");
    Region memory(slice * units);
    ThreadPool pool(threads.count, threads.cores);
    std::atomic<float> total{0.0f};
    // Written once: pages that were only ever read would all be the system's one page of zeros.
    pool.run(units, [&](int64_t unit, int) { std::memset(memory.data() + unit * slice, 0, slice); });
    const double best = best_of(seconds, [&] {
        pool.run(units, [&](int64_t unit, int) { total = total + read(memory.data() + unit * slice, slice); });
    });
    return static_cast<double>(slice * units) / best;
}

double measure_peak(const PeakKernel& kernel, Threads threads, double seconds) {
    ThreadPool pool(threads.count, threads.cores);
    std::atomic<float> total{0.0f};
    int64_t rounds = 1000;
    const double probe = best_of(0.0, [&] { total = total + kernel.run(rounds); });
    rounds = std::max(rounds, static_cast<int64_t>(static_cast<double>(rounds) * kRunSeconds / probe));
    const double best = best_of(seconds, [&] {
        pool.run(threads.count, [&](int64_t, int) { total = total + kernel.run(rounds); });
    });
    return kernel.operations * static_cast<double>(rounds * threads.count) / best;
}

} // namespace octavo
