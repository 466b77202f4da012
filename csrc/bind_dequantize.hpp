// Adds dequantize() to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_dequantize(nanobind::module_& module);

}  // namespace octavo
