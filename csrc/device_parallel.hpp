// How ops are cut into units. Included by the parts of Device only.
#pragma once

#include <algorithm>

#include "device.hpp"

namespace octavo {

constexpr int64_t kParallelWork = 16384; // elements below which waking another thread costs more than it brings

template <class Body> void Device::over_units(int64_t count, const Body& body) {
    nb::gil_scoped_release unlocked;
    std::lock_guard<std::mutex> lock(busy_);
    FlushDenormals flush;
    pool_.run(count, body);
}

template <class Body> void Device::over_rows(int64_t rows, int64_t work, const Body& body) {
    int64_t units = std::min({rows, int64_t{4} * pool_.size(), std::max<int64_t>(1, work / kParallelWork)});
    over_units(units, [&](int64_t unit, int) { body(rows * unit / units, rows * (unit + 1) / units); });
}

} // namespace octavo
