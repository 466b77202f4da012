// The Python face of dequantize.hpp: checks sizes, releases the GIL.
#include "bind_dequantize.hpp"

#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "dequantize.hpp"

namespace nb = nanobind;

namespace octavo {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Values = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
void checked(int type, Bytes data, Values<T> out, int num_threads) {
    const BlockFormat format = block_format(type);
    if (format.elements == 0) throw std::invalid_argument("tensor type " + std::to_string(type) + " is not known");
    const size_t blocks = out.size() / format.elements;
    if (out.size() % format.elements != 0 || data.size() != blocks * format.bytes) {
        throw std::invalid_argument(std::to_string(data.size()) + " bytes of type " + std::to_string(type) + " are not " +
                                    std::to_string(out.size()) + " values");
    }
    nb::gil_scoped_release release;
    dequantize(type, data.data(), blocks, out.data(), num_threads);
}

}  // namespace

void bind_dequantize(nb::module_& module) {
    const char* doc = "Unpack GGUF blocks: uint8[bytes] -> float32[n], or bfloat16 bits as uint16[n]. ValueError if sizes disagree.";
    module.def("dequantize", &checked<float>, nb::arg("type"), nb::arg("data"), nb::arg("out").noconvert(), nb::arg("num_threads"),
               doc);
    module.def("dequantize", &checked<uint16_t>, nb::arg("type"), nb::arg("data"), nb::arg("out").noconvert(),
               nb::arg("num_threads"));
}

}  // namespace octavo
