// Where compact blocks of bf16 weights are, and how a tile that is alone asks for them; see compact.hpp. Included inside the
// instruction set's own namespace, after kernels_tiles.hpp.

inline int64_t compact_block_bytes(int64_t k) { return bf16_block_elements(k) * 3 / 2; }

// Where in its block the next exception lies.
inline int64_t place_of(const uint32_t* exception) { return static_cast<int64_t>(*exception >> 8); }

// Where in a block the exceptions are.
struct Exceptions {
    const uint32_t* next;
    const uint8_t* block;
    const uint8_t* group; // the next one is in

    Exceptions(const uint32_t* first, const uint8_t* block) : next(first), block(block) { find(); }
    void find() { group = block + place_of(next) / kGroupElements * kGroupBytes; }
    // call(place, upper byte) for those of that group.
    template <class Call> inline __attribute__((always_inline)) void of_group(const Call& call) {
        for (const uint8_t* own = group; group == own; ++next, find()) call(place_of(next) % kGroupElements, static_cast<int>(*next & 255));
    }
};

// How a tile of so many rows that is alone asks for its weights: beyond a few all processors are alike.
constexpr Tuning tuning_of(Tuning tuning, int rows) {
    const int most = tuning == Tuning::zen4 ? 2 : 8;
    return rows <= most ? tuning : Tuning::common;
}

// One row is read as fast as memory is without, and more than these compute all the time.
constexpr bool on_fronts(Tuning tuning, int rows) { return tuning == Tuning::common && rows >= 2 && rows <= 10; }

// Its stream, which goes on where the next product begins.
template <Tuning kTuning, bool kOnFronts> struct CompactStream {
    static constexpr bool kFirstLevel = kTuning != Tuning::zen4, kSecondLevel = kTuning != Tuning::zen5;
    static constexpr int64_t kFirst = kSecondLevel ? 8 : 64, kSecond = kFirstLevel ? 48 : W == 8 ? 12 : 5; // groups ahead
    static constexpr int64_t kApart = kFirstLevel ? (kSecond - kFirst) * kGroupBytes : 0;

    const char *at, *end, *after;
    Fronts fronts;

    CompactStream(const uint8_t* from, const LinearArgs& a, const char*, const char*, int64_t)
        : at(reinterpret_cast<const char*>(from) + (kFirstLevel ? kFirst : kSecond) * kGroupBytes),
          end(a.reading.after ? a.reading.end : nullptr), after(a.reading.after) {
        if (kOnFronts) fronts = Fronts(reinterpret_cast<const char*>(from), a.reading);
        if (end && at > end) at += after - end;
    }

    inline __attribute__((always_inline)) void fetch_both() {
        if (at == end) at = after;
        for (int64_t line = 0; line < kGroupBytes; line += 64) {
            if (kFirstLevel) __builtin_prefetch(at + line);
            if (kSecondLevel && !kOnFronts) __builtin_prefetch(at + kApart + line, 0, 2);
        }
        if (kOnFronts) fronts.fetch<kGroupBytes / kFetched>();
        at += kGroupBytes;
    }
};
