// The Python face of integer weights: checks that arrays belong together. Ops are overloads of those for dense weights.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>

#include "cpu_features.hpp"
#include "unlocked.hpp"

namespace octavo {

using namespace nanobind::literals;

namespace {

template <class T> using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

using Halves = Matrix<uint16_t>;

IntegerSource read_source(int bits, Matrix<uint8_t> values, Halves scales, std::optional<Halves> minimums) {
    const int64_t bytes = bits == 4 ? kGroup / 2 : kGroup, rows = values.shape(0), groups = values.shape(1) / bytes;
    check(values.shape(1) % bytes == 0,
          bits == 4 ? "a row must be groups of 16 bytes" : "a row must be groups of 32 values");
    const auto check_scales = [&](const Halves& given, int64_t each) {
        check(static_cast<int64_t>(given.shape(0)) == rows && static_cast<int64_t>(given.shape(1)) == groups * each,
              "there must be one scale for each group of each row");
    };
    check_scales(scales, bits == 6 ? 2 : 1);
    check(minimums.has_value() == (bits < 6), "there are minimums with 4 and 5 bits, and only then");
    if (minimums) check_scales(*minimums, 1);
    return {bits, values.data(), scales.data(), minimums ? minimums->data() : nullptr, rows, groups};
}

using Piece = std::tuple<Matrix<uint8_t>, Halves, std::optional<Halves>>;

// The pieces, one by one as they are made, one below the other.
std::unique_ptr<IntegerWeight> pack_integer(Device& device, int bits, int64_t rows, int64_t columns, nb::iterable pieces, bool gated,
                                            bool vocabulary) {
    auto weight = device.integer_weight(bits, rows, groups_of_row(bits, columns), gated, vocabulary);
    int64_t done = 0;
    for (nb::handle piece : pieces) {
        Piece arrays;
        if (!nb::try_cast(piece, arrays, false)) throw nb::type_error("a piece must be contiguous uint8, uint16 and uint16 or None");
        const auto& [values, scales, minimums] = arrays;
        const IntegerSource source = read_source(bits, values, scales, minimums);
        check(source.groups == weight->columns / kGroup && source.rows <= rows - done, "pieces must be rows of the matrix");
        device.pack_rows(source, *weight, done);
        done += source.rows;
    }
    check(done == rows, "pieces must be all rows of the matrix");
    return weight;
}

template <class T> using Output = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// 4 bits where there are minimums.
template <class T>
void quantize(Matrix<T> matrix, Output<uint8_t> values, Output<uint16_t> scales, std::optional<Output<uint16_t>> minimums,
              const std::string& isa, int num_threads) {
    const size_t rows = matrix.shape(0), columns = matrix.shape(1);
    check(columns % kGroup == 0, "a row must be groups of 32 values");
    check(values.shape(0) == rows && values.shape(1) == (minimums ? columns / 2 : columns), "values must fit the matrix");
    check(scales.shape(0) == rows && scales.shape(1) == columns / kGroup, "there must be one scale for each group");
    check(!minimums || (minimums->shape(0) == rows && minimums->shape(1) == columns / kGroup),
          "there must be one minimum for each group");
    const IntegerKernels* kernels = find_integer_kernels(find_kernels(isa)->isa, "auto");
    const QuantizeWeightsArgs args{matrix.data(), values.data(), scales.data(), minimums ? minimums->data() : nullptr,
                                   std::is_same_v<T, uint16_t>, minimums ? 4 : 8};
    QuantizeProblem problem;
    {
        const Unlocked unlocked;
        problem = quantize_groups(args, static_cast<int64_t>(rows * columns / kGroup), kernels, num_threads);
    }
    check(problem != QuantizeProblem::not_finite, "a weight is infinite or not a number");
    check(problem != QuantizeProblem::too_large, "a weight is too large");
}

std::vector<std::string> names_of_kernels(const std::string& isa) {
    std::vector<std::string> names;
    for (const IntegerKernels* kernels : integer_kernels(isa)) names.push_back(kernels->name);
    return names;
}

} // namespace

void bind_integer(nb::module_& module, nb::class_<Device>& device) {
    nb::class_<Shortlist>(module, "Shortlist")
        .def_prop_ro("num_bytes", [](const Shortlist& list) { return list.rough ? list.rough->memory.bytes() : 0; })
        .def_ro("levels", &Shortlist::levels)
        .def("takes", &Shortlist::takes, "rows"_a)
        .def_ro("settled", &Shortlist::settled)
        .def_ro("given_up", &Shortlist::given_up);
    nb::class_<IntegerWeight>(module, "IntegerWeight")
        .def_ro("bits", &IntegerWeight::bits)
        .def_ro("rows", &IntegerWeight::rows)
        .def_ro("columns", &IntegerWeight::columns)
        .def_ro("gated", &IntegerWeight::gated)
        .def_ro("paired", &IntegerWeight::paired)
        .def_prop_ro("num_bytes", [](const IntegerWeight& w) { return w.memory.bytes(); })
        .def_ro("shortlists", &IntegerWeight::shortlists);
    module.def("integer_kernels", &names_of_kernels, "isa"_a);
    module.def("quantize", &quantize<float>, "matrix"_a.noconvert(), "values"_a.noconvert(), "scales"_a.noconvert(),
               "minimums"_a.noconvert().none(), "isa"_a, "num_threads"_a);
    module.def("quantize", &quantize<uint16_t>, "matrix"_a.noconvert(), "values"_a.noconvert(), "scales"_a.noconvert(),
               "minimums"_a.noconvert().none(), "isa"_a, "num_threads"_a);
    device
        .def("pack_integer", &pack_integer, "bits"_a, "rows"_a, "columns"_a, "pieces"_a, nb::kw_only(), "gated"_a = false,
             "vocabulary"_a = false)
        .def("shortlist", &Device::shortlist_integer, "weight"_a, nb::kw_only(), "most_bytes"_a, "inputs"_a)
        .def("embedding", &Device::embedding_integer, "ids"_a, "table"_a)
        .def(
            "linear",
            [](Device& d, nb::handle x, const IntegerWeight& w, nb::handle b, nb::handle r, nb::handle into, int64_t column) {
                return d.linear_integer(x, w, b, r, {into, column});
            },
            "x"_a, "weight"_a, "bias"_a.none(), "residual"_a.none(), "into"_a.none() = nb::none(), "column"_a = 0)
        .def("gated_linear", &Device::gated_linear_integer, "x"_a, "weight"_a, "bias"_a.none())
        .def("linear_argmax", &Device::linear_argmax_integer, "x"_a, "weight"_a, "allowed"_a.none() = nb::none());
}

} // namespace octavo
