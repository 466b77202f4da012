// How ops are issued and cut into units. Included by the parts of Device only.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "device.hpp"
#include "sizes.hpp"
#include "unlocked.hpp"

namespace octavo {

// Elements of rows that are worth a unit of their own: with fewer, one thread is faster than two. Zen 5 cores may share no cache:
// fewer than 16,384 were not measured there.
constexpr int64_t kParallelWork = 4096, kParallelWorkZen5 = 16384;

constexpr int64_t kFewRows = 4;         // below, products of plain numbers take two blocks at once: memory is what they wait for

// How many parts the rows of a product have: one for each thread, where they are enough. What a thread wrote in other ops is near it
// in this one, and the others' part would come from far away.
inline int64_t parts_of(int64_t rows, int64_t rows_of_part, int threads) { return rows >= threads * rows_of_part ? threads : 1; }
// Where the units end that a claim and what follows it are of, in those of its part.
inline int64_t limit_in_part(const Spans::Claim& claim, int64_t units_of_part) { return (claim.limit - 1) % units_of_part + 1; }

template <class Object> void Device::hold(const Object& object) {
    if (program_) program_->keep(nb::find(object), nullptr);
}

template <class Body> void Device::run(Body&& body) {
    const Unlocked unlocked;
    std::unique_lock<std::mutex> lock(busy_, std::defer_lock);
    if (pool_.is_at_home()) {
        lock.lock();
    } else if (!lock.try_lock() || pool_.is_cut_off()) { // who holds it was a thread of the other process
        throw std::runtime_error("this process was forked in the middle of a step, and has no threads to finish it: make the model in "
                                 "the process that uses it");
    }
    FlushDenormals flush;
    pool_.finish();
    body();
}

template <class Body> void Device::issue(Body body, bool in_lanes) {
    if (program_) program_->append(std::move(body), in_lanes);
    else run(body);
}

template <class Call> void Device::over_units(int64_t count, const Call& call) {
    pool_.run(count, [&](int64_t unit, int thread) {
        call(unit, thread);
        pool_.get_on(thread);
    });
}

template <class Call> void Device::over_claims(Spans& spans, int64_t most, const Call& call) {
    over_units(spans.size(), [&](int64_t, int thread) {
        for (Spans::Claim claim; spans.claim(spans.of(thread), most, claim);) {
            call(claim, thread);
            pool_.get_on(thread);
        }
    });
}

template <class Call> void Device::over_spans(int64_t count, const Call& call) {
    Spans spans(count, pool_.team());
    over_claims(spans, 1, [&](const Spans::Claim& claim, int thread) { call(claim.begin, thread); });
}

template <class Call> void Device::over_rows(Range rows, int64_t work, const Call& call) {
    const int64_t least = tuning_ == Tuning::zen5 ? kParallelWorkZen5 : kParallelWork;
    const int64_t count = rows.count(), units = std::min({count, int64_t{4} * pool_.team(), std::max<int64_t>(1, work / least)});
    over_spans(units, [&](int64_t unit, int) { call(rows.begin + count * unit / units, rows.begin + count * (unit + 1) / units); });
}

} // namespace octavo
