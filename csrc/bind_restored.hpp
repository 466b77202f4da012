#pragma once

#include <nanobind/nanobind.h>

#include "device.hpp"

namespace octavo {

// Weights taken apart, and Device's functions that put them together again.
void bind_restored(nb::module_& module, nb::class_<Device>& device);

} // namespace octavo
