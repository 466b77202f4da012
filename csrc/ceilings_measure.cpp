#include "ceilings_measure.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "cpu_features.hpp"
#include "integer_weight.hpp"
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

const VectorCeilings* vectors_of(const std::string& isa) {
    find_kernels(isa); // throws where it cannot be used
#ifdef OCTAVO_HAVE_CEILINGS_AVX2
    if (isa == "avx2") return avx2_ceilings();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512
    if (isa == "avx512" || isa == "avx512_bf16" || isa == "amx") return avx512_ceilings();
#endif
    return generic_ceilings();
}

const PeakKernel* bf16_of(const std::string& isa, const std::string& integer_kernels) {
    [[maybe_unused]] const std::string name = find_integer_kernels(isa, integer_kernels)->name;
#ifdef OCTAVO_HAVE_CEILINGS_AVX2_VNNI
    if (isa == "avx2" && name == "avx2_vnni") return avx2_vnni_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX2
    if (isa == "avx2") return avx2_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512_VNNI
    if (isa == "avx512" && name == "avx512_vnni") return avx512_vnni_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512
    if (isa == "avx512") return avx512_pairs_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512_BF16
    if (isa == "avx512_bf16") return avx512_bf16_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AMX
    if (isa == "amx") return amx_peak();
#endif
    return &vectors_of(isa)->fp32;
}

const PeakKernel* int8_of(const std::string& isa, const std::string& integer_kernels) {
    [[maybe_unused]] const std::string name = find_integer_kernels(isa, integer_kernels)->name;
#ifdef OCTAVO_HAVE_CEILINGS_AVX2
    if (name == "avx2") return avx2_int8_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX2_VNNI
    if (name == "avx2_vnni") return avx2_vnni_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512
    if (name == "avx512") return avx512_int8_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AVX512_VNNI
    if (name == "avx512_vnni") return avx512_vnni_peak();
#endif
#ifdef OCTAVO_HAVE_CEILINGS_AMX
    if (name == "amx_int8") return amx_int8_peak();
#endif
    return generic_int8_peak();
}

} // namespace

const PeakKernel& peak_kernel(const std::string& isa, const std::string& integer_kernels, const std::string& arithmetic) {
    const VectorCeilings* vectors = vectors_of(isa);
    if (arithmetic == "fp32") return vectors->fp32;
    if (arithmetic == "bf16") return *bf16_of(isa, integer_kernels);
    if (arithmetic == "int8") return *int8_of(isa, integer_kernels);
    throw std::invalid_argument("unknown arithmetic " + arithmetic + "; known are fp32, bf16, int8");
}

double measure_read(const std::string& isa, Threads threads, int64_t bytes, double seconds) {
    const VectorCeilings* vectors = vectors_of(isa);
    const int64_t units = kUnitsPerThread * threads.count;
    const int64_t slice = bytes / units / kReadStep * kReadStep;
    if (slice <= 0) throw std::invalid_argument("too few bytes to share out among the threads");
    Region memory(slice * units);
    ThreadPool pool(threads.count, threads.cores);
    std::atomic<float> total{0.0f};
    // Written once: pages that were only ever read would all be the system's one page of zeros.
    pool.run(units, [&](int64_t unit, int) { std::memset(memory.data() + unit * slice, 0, slice); });
    const double best = best_of(seconds, [&] {
        pool.run(units, [&](int64_t unit, int) { total = total + vectors->read(memory.data() + unit * slice, slice); });
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
