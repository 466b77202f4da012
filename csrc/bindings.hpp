// Parts of the Python module octavo._native, each in a file of its own.
#pragma once

#include <nanobind/nanobind.h>

#include "device.hpp"

namespace octavo {

// The measurements of ceilings_measure.hpp.
void bind_ceilings(nb::module_& module);
// Unpacking of GGUF blocks.
void bind_dequantize(nb::module_& module);
// Integer weights and the ops of Device that take them.
void bind_integer(nb::module_& module, nb::class_<Device>& device);
// Recorded programs.
void bind_program(nb::module_& module, nb::class_<Device>& device);
// Weights taken apart, and Device's functions that put them together again.
void bind_restored(nb::module_& module, nb::class_<Device>& device);

} // namespace octavo
