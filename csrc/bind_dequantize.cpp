// The Python face of dequantize.hpp: checks sizes, releases the GIL.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "dequantize.hpp"
#include "unlocked.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Values = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check(bool holds, const std::string& message) {
    if (!holds) throw std::invalid_argument(message);
}

BlockFormat checked_format(int type, size_t bytes, size_t values) {
    const BlockFormat format = block_format(type);
    const std::string name = "type " + std::to_string(type);
    check(format.elements != 0, "tensor " + name + " is not known");
    check(values % format.elements == 0 && bytes == values / format.elements * format.bytes,
          std::to_string(bytes) + " bytes of " + name + " are not " + std::to_string(values) + " values");
    return format;
}

template <class T>
void checked(int type, Bytes data, Values<T> out, int num_threads) {
    const BlockFormat format = checked_format(type, data.size(), out.size());
    const Unlocked unlocked;
    dequantize(type, data.data(), out.size() / format.elements, out.data(), num_threads);
}

bool checked_split(int type, Bytes data, Values<uint8_t> values, Values<uint16_t> scales, std::optional<Values<uint16_t>> minimums,
                   int num_threads) {
    const BlockFormat known = block_format(type);
    const size_t blocks = known.bytes ? data.size() / known.bytes : 0, elements = blocks * known.elements;
    const bool packed = values.size() * 2 == elements;
    const BlockFormat format = checked_format(type, data.size(), packed ? elements : values.size());
    check(format.inputs != 0, "type " + std::to_string(type) + " has no whole numbers");
    check(scales.size() == elements / format.inputs && minimums.has_value() == (format.minimums || format.offset) &&
              (!minimums || minimums->size() == scales.size()),
          "scales and minimums must fit the type");
    const Unlocked unlocked;
    return split_blocks(type, data.data(), blocks, values.data(), packed, scales.data(), minimums ? minimums->data() : nullptr, num_threads);
}

}  // namespace

void bind_dequantize(nb::module_& module) {
    const char* doc = "Unpack GGUF blocks: uint8[bytes] -> float32[n], or bfloat16 bits as uint16[n]. ValueError if sizes disagree.";
    module.def("dequantize", &checked<float>, nb::arg("type"), nb::arg("data"), nb::arg("out").noconvert(), nb::arg("num_threads"),
               doc);
    module.def("dequantize", &checked<uint16_t>, nb::arg("type"), nb::arg("data"), nb::arg("out").noconvert(),
               nb::arg("num_threads"));
    module.def("split_blocks", &checked_split, nb::arg("type"), nb::arg("data"), nb::arg("values").noconvert(),
               nb::arg("scales").noconvert(), nb::arg("minimums").noconvert().none(), nb::arg("num_threads"),
               "Split GGUF blocks of whole numbers into a layout's values, scales and minimums. False: some are not finite. ValueError "
               "if sizes disagree.");
}

}  // namespace octavo
