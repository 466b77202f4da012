#pragma once

#include <nanobind/nanobind.h>

#include "device.hpp"

namespace octavo {

// Integer weights and the ops of Device that take them.
void bind_integer(nb::module_& module, nb::class_<Device>& device);

} // namespace octavo
