// Work shared out among threads in spans of consecutive units: each thread works through its own span in order, so that what
// comes next is known while a unit runs, and takes from the end of another's when its own is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace octavo {

class Spans {
public:
    // A run [begin, end) of units claimed together; they are followed by more of the same claimant's up to `limit`.
    struct Claim {
        int64_t begin, end, limit;
    };

    // Equal ones, one for each thread as far as the units last, of which there are fewer than 2^31.
    Spans(int64_t units, int threads) : spans_(units < threads ? units : threads) {
        for (int64_t i = 0, count = size(); i < count; ++i) spans_[i].rest = pack(units * i / count, units * (i + 1) / count);
    }

    // Spans that end where it says.
    explicit Spans(const std::vector<int64_t>& ends) : spans_(ends.size()) {
        for (size_t i = 0; i < ends.size(); ++i) spans_[i].rest = pack(i ? ends[i - 1] : 0, ends[i]);
    }

    int size() const { return static_cast<int>(spans_.size()); }
    // Which one is a thread's own.
    int of(int thread) const { return thread % size(); }

    // Up to `most` units from the front of span `own`, or one from the back of another. False: none are left.
    bool claim(int own, int64_t most, Claim& claim) {
        if (take(spans_[own], most, true, claim)) return true;
        for (size_t i = 1; i < spans_.size(); ++i) {
            if (take(spans_[(own + i) % spans_.size()], 1, false, claim)) return true;
        }
        return false;
    }

private:
    struct alignas(64) Span {
        std::atomic<uint64_t> rest; // [high half, low half) is unclaimed
    };

    static uint64_t pack(int64_t begin, int64_t end) { return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end); }

    static bool take(Span& span, int64_t most, bool front, Claim& claim) {
        for (uint64_t seen = span.rest.load(std::memory_order_relaxed);;) {
            const int64_t begin = static_cast<int64_t>(seen >> 32), end = static_cast<int64_t>(seen & 0xFFFFFFFFu);
            if (begin == end) return false;
            const int64_t count = end - begin < most ? end - begin : most;
            claim = front ? Claim{begin, begin + count, end} : Claim{end - count, end, end};
            const uint64_t rest = front ? pack(begin + count, end) : pack(begin, end - count);
            if (span.rest.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) return true;
        }
    }

    std::vector<Span> spans_;
};

} // namespace octavo
