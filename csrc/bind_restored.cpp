// The Python face of packed weights' memory: taken apart into arrays, and put together from such.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <optional>
#include <tuple>
#include <utility>

namespace octavo {

using namespace nanobind::literals;

namespace {

template <class T> using Given = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T> using Seen = nb::ndarray<const T, nb::numpy, nb::ndim<1>>;
// highs, exceptions, where each block's begin, exponents, scales, errors; as PackedWeight has them.
using GivenCompact = std::tuple<Given<uint8_t>, Given<uint32_t>, Given<int64_t>, Given<uint8_t>, Given<float>, Given<float>>;
using SeenCompact = std::tuple<Seen<uint8_t>, Seen<uint32_t>, Seen<int64_t>, Seen<uint8_t>, Seen<float>, Seen<float>>;

WeightMemory::Slice slice_of(const Given<uint8_t>& memory) {
    auto* data = reinterpret_cast<char*>(const_cast<uint8_t*>(memory.data())); // weights are written to where they are packed alone
    return {std::make_shared<const Given<uint8_t>>(memory), data, static_cast<int64_t>(memory.size())};
}

template <class T> Seen<T> seen(const T* data, size_t count, nb::handle owner) { return {data, {count}, owner}; }
template <class T> Seen<T> seen(const std::vector<T>& vector, nb::handle owner) { return seen(vector.data(), vector.size(), owner); }

template <class Weight> Seen<uint8_t> memory_of(nb::handle_t<Weight> self) {
    const WeightMemory::Slice& memory = nb::cast<const Weight&>(self).memory;
    return seen(reinterpret_cast<const uint8_t*>(memory.data()), static_cast<size_t>(memory.bytes()), self);
}

std::optional<SeenCompact> compact_of(nb::handle_t<PackedWeight> self) {
    const auto& w = nb::cast<const PackedWeight&>(self);
    if (!w.compact) return std::nullopt;
    return SeenCompact{seen(w.highs, self), seen(w.exceptions, self), seen(w.first_exceptions, self),
                       seen(w.exponents, self), seen(w.scales, self), seen(w.errors, self)};
}

template <class T> void take(const Given<T>& from, std::vector<T>& to) { to.assign(from.data(), from.data() + from.size()); }

std::unique_ptr<PackedWeight> restore(const Device& device, int64_t rows, int64_t columns, const Given<uint8_t>& memory,
                                      const std::optional<GivenCompact>& compact, bool gated) {
    auto weight = std::make_unique<PackedWeight>(rows, columns, device.in_bfloat16(), gated, slice_of(memory));
    if (compact) {
        const auto& [highs, exceptions, first_exceptions, exponents, scales, errors] = *compact;
        check(highs.size() > 0, "compact blocks have codes");
        take(highs, weight->highs);
        take(exceptions, weight->exceptions);
        take(first_exceptions, weight->first_exceptions);
        take(exponents, weight->exponents);
        take(scales, weight->scales);
        take(errors, weight->errors);
    }
    return device.restored(std::move(weight));
}

} // namespace

void bind_restored(nb::module_& module, nb::class_<Device>& device) {
    module.def("memory_of", &memory_of<PackedWeight>, "weight"_a);
    module.def("memory_of", &memory_of<IntegerWeight>, "weight"_a);
    module.def("compact_of", &compact_of, "weight"_a);
    device.def_prop_ro("packing", &Device::packing)
        .def(
            "restore_integer",
            [](const Device& d, int bits, int64_t rows, int64_t columns, const Given<uint8_t>& memory, bool gated, bool paired) {
                return d.restored(bits, rows, columns, gated, paired, slice_of(memory));
            },
            "bits"_a, "rows"_a, "columns"_a, "memory"_a.noconvert(), nb::kw_only(), "gated"_a, "paired"_a)
        .def("restore", &restore, "rows"_a, "columns"_a, "memory"_a.noconvert(), "compact"_a.none(), nb::kw_only(), "gated"_a);
}

} // namespace octavo
