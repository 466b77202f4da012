// Adds the measurements of ceilings_measure.hpp to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo {

void bind_ceilings(nanobind::module_& module);

} // namespace octavo
