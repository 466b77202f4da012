// Asking for what is read later. Included inside the instruction set's own namespace.

inline const char* next_piece(Pieces* pieces) {
    return pieces && pieces->next < pieces->count ? pieces->data[pieces->next++] : nullptr;
}

// So many bytes from where the last ones ended, as if a piece and a neighbour that follows it were one. Where what is left is less,
// what lies behind it comes too.
inline const char* next_bytes(Pieces* pieces, int64_t bytes) {
    if (!pieces || pieces->next >= pieces->count) return nullptr;
    const char* at = pieces->data[pieces->next] + pieces->taken;
    pieces->taken += bytes;
    while (pieces->taken >= pieces->bytes) {
        const char* end = pieces->data[pieces->next++] + pieces->bytes;
        const bool neighbours = pieces->next < pieces->count && pieces->data[pieces->next] == end;
        pieces->taken = neighbours ? pieces->taken - pieces->bytes : 0;
    }
    return at;
}

// What a tile that is alone asks for far ahead. Hardware that has seen a page asked for reads ahead in it, but not far, and does so
// in several pages at once, while requests of software alone keep no more lines under way than the first-level cache has places
// for. So the lines of several pages are asked for in turn, a window of them ahead of what is read.

constexpr int64_t kFetched = 64; // bytes of a request: a cache line
constexpr int64_t kFronts = 8, kFront = 4 << 10, kWindow = kFronts * kFront; // pages, bytes of one and of all

// Windows begin with the first whole page that a thread reads; before it, and where a window would not last to the thread's end, lines
// are asked for one after the other.
class Fronts {
public:
    Fronts() = default; // to be assigned
    Fronts(const char* from, const Reading& reading) {
        const char* at = from + kWindow + kFront; // so that the last line of the first page comes in time
        if (reading.after && at >= reading.end) {
            open(reading.after, at - reading.end, nullptr);
        } else {
            end_ = reading.end;
            after_ = reading.after;
            open(reading.begin, at - reading.begin, reading.end);
        }
    }

    // Asks for so many lines, as many as are read.
    template <int kLines> inline __attribute__((always_inline)) void fetch() {
#pragma GCC unroll 32
        for (int line = 0; line < kLines; ++line) {
            __builtin_prefetch(at_, 0, 2);
            at_ += step_;
            if (at_ >= turn_) turn();
        }
    }

private:
    // Goes on at so many bytes from `begin`; what is asked for ends at `end`, if that is known.
    void open(const char* begin, int64_t bytes, const char* end) {
        const char* at = begin + bytes;
        const char* base = begin + (-reinterpret_cast<uintptr_t>(begin) & (kFront - 1));
        const char* window = base + (at - base) / kWindow * kWindow;
        step_ = kFetched;
        if (at < base) {
            at_ = at;
            turn_ = base;
        } else if (end && end - window < kWindow) {
            at_ = at;
            turn_ = end;
        } else {
            const int64_t place = (at - window) / kFetched;
            at_ = window + place % kFronts * kFront + place / kFronts * kFetched;
            turn_ = window + kWindow;
            step_ = kFront;
        }
    }
    void turn() {
        if (step_ == kFront) {
            at_ += kFetched - kWindow;
            if (at_ == turn_ - kWindow + kFront) open(turn_, 0, end_);
        } else if (turn_ != end_) {
            open(at_, 0, end_);
        } else {
            end_ = nullptr;
            open(after_ ? after_ : at_, 0, nullptr);
        }
    }

    const char *at_ = nullptr, *turn_ = nullptr, *end_ = nullptr, *after_ = nullptr;
    int64_t step_ = 0;
};
