#pragma once

#include <nanobind/nanobind.h>

#include "device.hpp"

namespace octavo {

void bind_program(nb::module_& module, nb::class_<Device>& device);

} // namespace octavo
