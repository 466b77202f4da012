// How ops are issued and cut into units. Included by the parts of Device only.
#pragma once

#include <algorithm>

#include "device.hpp"
#include "spans.hpp"

namespace octavo {

constexpr int64_t kParallelWork = 16384; // elements below which waking another thread costs more than it brings

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class Object> void Device::hold(const Object& object) {
    if (program_) program_->keep(nb::find(object), nullptr);
}

template <class Body> void Device::run(Body&& body) {
    nb::gil_scoped_release unlocked;
    std::lock_guard<std::mutex> lock(busy_);
    FlushDenormals flush;
    body();
}

template <class Body> void Device::issue(Body body) {
    if (program_) program_->append(std::move(body));
    else run(body);
}

template <class Call> void Device::over_units(int64_t count, const Call& call) { pool_.run(count, call); }

template <class Call> void Device::over_spans(int64_t count, const Call& call) {
    const int64_t claimants = std::min<int64_t>(count, pool_.size());
    Spans spans(count, static_cast<int>(claimants));
    over_units(claimants, [&](int64_t own, int) {
        for (Spans::Claim claim; spans.claim(static_cast<int>(own), 1, claim);) call(claim.begin, own);
    });
}

template <class Call> void Device::over_rows(int64_t rows, int64_t work, const Call& call) {
    int64_t units = std::min({rows, int64_t{4} * pool_.size(), std::max<int64_t>(1, work / kParallelWork)});
    over_units(units, [&](int64_t unit, int) { call(rows * unit / units, rows * (unit + 1) / units); });
}

} // namespace octavo
