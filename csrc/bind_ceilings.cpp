// The Python face of ceilings_measure.hpp: limits of arguments, the interpreter's lock released.
#include "bindings.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "ceilings_measure.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace octavo {

using namespace nanobind::literals;

namespace {

void check_limits(int num_threads, double seconds) {
    if (num_threads < 1) throw std::invalid_argument("a measurement needs at least one thread");
    if (!(seconds >= 0 && seconds <= 60)) throw std::invalid_argument("a measurement takes between 0 and 60 seconds");
}

double read_bandwidth(const std::string& isa, int num_threads, const std::vector<int>& cores, int64_t num_bytes, double seconds) {
    check_limits(num_threads, seconds);
    const Unlocked unlocked;
    return measure_read(isa, {num_threads, cores}, num_bytes, seconds);
}

std::pair<std::string, double> peak(const std::string& isa, int num_threads, const std::vector<int>& cores,
                                    const std::string& arithmetic, double seconds, const std::string& integer_kernels) {
    check_limits(num_threads, seconds);
    const Unlocked unlocked;
    const PeakKernel& kernel = peak_kernel(isa, integer_kernels, arithmetic);
    return {kernel.instruction, measure_peak(kernel, {num_threads, cores}, seconds)};
}

} // namespace

void bind_ceilings(nb::module_& module) {
    module.def("read_bandwidth", &read_bandwidth, "isa"_a, "num_threads"_a, nb::kw_only(), "cores"_a, "num_bytes"_a, "seconds"_a);
    module.def("peak", &peak, "isa"_a, "num_threads"_a, nb::kw_only(), "cores"_a, "arithmetic"_a, "seconds"_a,
               "integer_kernels"_a = "auto");
}

} // namespace octavo
