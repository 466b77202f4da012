// What tiles of products have in common: where their rows are, and what they bring into the caches beside their own stream of
// weights. Included inside the instruction set's own namespace.

inline int64_t bf16_block_elements(int64_t k) { return round_up(k, kDepthStep) * kColumnBlock; }

// Where rows are, by few registers: a row is a base and once, twice, three or four times the stride from it.
template <int R, class Input> struct RowBases {
    const char* at[(R + 4) / 5];
    int64_t stride, three; // bytes

    RowBases(const Input* first, int64_t elements) : stride(elements * static_cast<int64_t>(sizeof(Input))), three(3 * stride) {
        for (int i = 0; i < (R + 4) / 5; ++i) at[i] = reinterpret_cast<const char*>(first) + 5 * i * stride;
    }
    // A compiler that knows the strides would keep a pointer for each row.
    inline __attribute__((always_inline)) void hide_strides() { __asm__("" : "+r"(stride), "+r"(three)); }
    inline __attribute__((always_inline)) const Input* row(int r) const {
        const int64_t from_base = r % 5 == 3 ? three : r % 5 * stride;
        return reinterpret_cast<const Input*>(at[r / 5] + from_base);
    }
    inline __attribute__((always_inline)) auto input(int64_t k) const {
        return [this, k](int r) __attribute__((always_inline)) { return row(r)[k]; };
    }
    inline __attribute__((always_inline)) void advance(int64_t inputs) {
        for (const char*& base : at) base += inputs * static_cast<int64_t>(sizeof(Input));
    }
};

// What a tile brings into the cache for tiles to come, beside its own stream: a line for each pair of inputs, from two places in
// turn that each go on by `step` bytes. A panel that many rows use keeps memory idle but for its first tile, so every tile fetches
// its share of the panel that follows.
struct PanelAhead {
    const char *at, *other;
    int64_t step;

    explicit operator bool() const { return at; }
    inline __attribute__((always_inline)) void fetch() {
        __builtin_prefetch(at, 0, 2); // into the second level: the first is full of what is in use
        const char* next = at + step;
        at = other;
        other = next;
    }
    // Twice, for two pairs.
    inline __attribute__((always_inline)) void fetch_both() {
        __builtin_prefetch(at, 0, 2);
        __builtin_prefetch(other, 0, 2);
        at += step;
        other += step;
    }
    // What so many fetches would have left; an even number.
    inline void skip(int64_t fetches) {
        at += fetches / 2 * step;
        other += fetches / 2 * step;
    }
};
constexpr PanelAhead kNothingAhead{nullptr, nullptr, 0};

// Pairs of inputs that a tile walks.
inline int64_t pairs_of(const LinearArgs& a) { return round_up(a.k, kDepthStep) / 2 * (kColumnBlock / (W * kLinearVecs)); }

// Bytes to be fetched with each of so many pairs, so that all are fetched.
inline int64_t bytes_a_pair(int64_t bytes, int64_t pairs) { return pairs ? (bytes + pairs - 1) / pairs : 0; }

constexpr int64_t kFewFetchAll = 5; // tiles, with Zen 4's vectors; nothing else is measured

// What tiles of several fetch: the first ones the panel that follows, each its share, the others pieces of what later ops will
// read, a piece each. Few would get through few pieces so: they fetch a line with each pair of inputs, the panel and then pieces.
class SharedAhead {
public:
    SharedAhead(const LinearArgs& a, int64_t panel_bytes, int64_t tiles)
        : pieces_(a.pieces), panel_bytes_(panel_bytes), sharers_(pieces_ && tiles > 2 ? min64(4, max64(2, tiles / 2)) : tiles), pairs_(pairs_of(a)),
          share_(bytes_a_pair(panel_bytes, pairs_ * sharers_)), piece_(pieces_ ? bytes_a_pair(pieces_->bytes, pairs_) : 0),
          all_(W == 16 && a.tuning == Tuning::zen4 && pieces_ && tiles <= kFewFetchAll && panel_bytes < tiles * pairs_ * kFetched) {}

    // Tile t's; where there is nothing more to fetch, a line of `own` that the tile reads anyhow. panel: may be null.
    PanelAhead of(int64_t t, const char* panel, const char* own) const {
        if (all_) {
            const char *at = half_of_tile(2 * t, panel), *other = half_of_tile(2 * t + 1, panel);
            return {at ? at : own, other ? other : own, kFetched};
        }
        const char* at = t >= sharers_ ? next_piece(pieces_) : panel ? panel + t * share_ * pairs_ : nullptr;
        if (!at) return {own, own, 0};
        const int64_t step = t < sharers_ ? share_ : piece_;
        return {at, at + step, 2 * step};
    }

private:
    const char* half_of_tile(int64_t i, const char* panel) const {
        const int64_t bytes = pairs_ / 2 * kFetched;
        if (i * bytes >= panel_bytes_) return next_bytes(pieces_, bytes);
        return panel ? panel + i * bytes : nullptr;
    }

    Pieces* pieces_;
    int64_t panel_bytes_, sharers_, pairs_, share_, piece_;
    bool all_;
};

// What a tile that is alone fetches of the panel that follows: both halves at once. Hardware that runs ahead of what is read by
// itself does so for each page, and not far.
inline PanelAhead fetched_alone(const LinearArgs& a, const char* panel, int64_t bytes) {
    if (!kAloneAhead || !panel) return kNothingAhead;
    return {panel, panel + round_up(bytes / 2, 64), bytes_a_pair(bytes, pairs_of(a))};
}

// The panel after a block's, as far as it is known; null if not.
inline const char* panel_after(const LinearArgs& a, int64_t block, int64_t block1, int64_t block_bytes) {
    if (block + 1 < a.fetch_end) return static_cast<const char*>(a.weight) + (block + 1) * block_bytes;
    return block + 1 == block1 ? a.reading.after : nullptr;
}
