// Attention on tiles where results and cache are bf16: up to 32 heads x 32 positions of scores, or x 32 columns of results, in
// four accumulators. Included inside the instruction set's own namespace, after kernels_attention.hpp and kernels_amx.hpp.
//
// Tiles are used as there: 0-3 accumulate [upper heads | lower heads] x [16 | 16]; 4, 5 hold queries or weights; 6, 7 keys or
// values.
//
// Whatever a row sees of 32 neighbouring positions, aligned, is one product: weights of the others are 0, and so are values that
// no row of the unit sees. Zeros change no sum, so a row's are the same in any unit. Only what is not finite would be changed by
// a weight of 0: where some rows see such a value and some do not, rows are multiplied one by one.

constexpr int kTileGroups = kTokenTile / kTokenGroup;

struct InTiles {
    using Factor = uint16_t;
    static constexpr int64_t kDepth = kDepthStep;

    InTiles() = default;
    InTiles(const InTiles&) = delete;
    InTiles& operator=(const InTiles&) = delete;
    ~InTiles() {
        if (upper) tile_release();
    }

    void score(const AttentionArgs& a, const AttentionScratch<uint16_t>& s, const Tile<uint16_t>& tile);
    void add(const AttentionArgs& a, const AttentionScratch<uint16_t>& s, const HeadStates& state, const Tile<uint16_t>& tile,
             int64_t first_end, int64_t row0, int64_t row1, int64_t start);

  private:
    void configure(int64_t above, int64_t below) {
        if (above == upper && (below == 0 || below == lower)) return;
        tile_configure(tile_config(above, below));
        upper = above, lower = below;
    }

    // multiply<kBoth>(head, size) for as many heads as two tiles take; kBoth: there are more than the first tile's `size`. Tiles
    // are of one size where heads divide so, and configured once.
    template <class Multiply> void over_heads(int64_t begin, int64_t end, const Multiply& multiply) {
        const int64_t tiles = (end - begin + 15) / 16, size = (end - begin) % tiles ? 16 : (end - begin) / tiles;
        tile_fence();
        for (int64_t head = begin; head < end; head += 2 * size) {
            configure(min64(end - head, size), min64(max64(end - head - size, 0), size));
            if (end - head > size) multiply.template operator()<true>(head, size);
            else multiply.template operator()<false>(head, size);
        }
        tile_fence();
    }

    int64_t upper = 0, lower = 0; // heads that tiles are configured for
};

// Behind what all kinds of products need: a tile's keys, then its values.
inline int64_t keys_of_tile(const AttentionArgs& a) { return kTokenTile * round_up(a.head_dim, kDepthStep); }
inline int64_t values_of_tile(const AttentionArgs& a) { return kTokenTile * padded_dim(a.head_dim); }

int64_t attention_scratch_tiles(const AttentionArgs& a, int64_t rows) {
    return attention_scratch(a, rows) + (keys_of_tile(a) + values_of_tile(a)) / 2;
}

// The keys of 16 positions, dimensions from head_dim to `depth` 0, from groups of any size.
inline void lay_keys(const uint16_t* const* groups, int64_t group, int64_t head_dim, int64_t depth, uint16_t* to) {
    for (int64_t i = 0; i < depth; i += 2) {
        for (int64_t p = 0; p < kTokenGroup; p += group, to += 2 * group) {
            if (i < head_dim) __builtin_memcpy(to, groups[p / group] + i * group, group * 2 * sizeof(uint16_t));
            else __builtin_memset(to, 0, group * 2 * sizeof(uint16_t));
        }
    }
}

// Adds products of heads, `stride` elements from one to the next, with 16 columns, or twice that: kTwo.
template <bool kBoth, bool kTwo>
inline __attribute__((always_inline)) void multiply_tiles(const uint16_t* heads, int64_t stride, int64_t size,
                                                          const uint16_t* first, const uint16_t* second) {
    OCTAVO_TILE_LOAD(4, heads, stride * 2);
    OCTAVO_TILE_LOAD(6, first, 64);
    OCTAVO_TILE_DOT(0, 4, 6);
    if constexpr (kTwo) {
        OCTAVO_TILE_LOAD(7, second, 64);
        OCTAVO_TILE_DOT(1, 4, 7);
    }
    if constexpr (kBoth) {
        OCTAVO_TILE_LOAD(5, heads + size * stride, stride * 2);
        OCTAVO_TILE_DOT(2, 5, 6);
    }
    if constexpr (kBoth && kTwo) OCTAVO_TILE_DOT(3, 5, 7);
}

template <bool kBoth, bool kTwo> inline __attribute__((always_inline)) void store_tiles(float* to, int64_t stride, int64_t size) {
    OCTAVO_TILE_STORE(0, to, stride * 4);
    if constexpr (kTwo) OCTAVO_TILE_STORE(1, to + 16, stride * 4);
    if constexpr (kBoth) OCTAVO_TILE_STORE(2, to + size * stride, stride * 4);
    if constexpr (kBoth && kTwo) OCTAVO_TILE_STORE(3, to + size * stride + 16, stride * 4);
}

// Scores of two tiles of heads, or of one, with 32 positions, or 16.
template <bool kBoth, bool kTwo>
inline void score_groups(const uint16_t* q, int64_t depth, int64_t size, const uint16_t* const* keys, float* scores, Ahead& ahead) {
    OCTAVO_TILE_ZERO(0);
    if constexpr (kTwo) OCTAVO_TILE_ZERO(1);
    if constexpr (kBoth) OCTAVO_TILE_ZERO(2);
    if constexpr (kBoth && kTwo) OCTAVO_TILE_ZERO(3);
    for (int64_t i = 0; i < depth; i += kDepthStep) {
        fetch<8>(ahead, ahead.at);
        multiply_tiles<kBoth, kTwo>(q + i, depth, size, keys[0] + i * kTokenGroup, kTwo ? keys[1] + i * kTokenGroup : nullptr);
    }
    store_tiles<kBoth, kTwo>(scores, kTokenTile, size);
}

inline void InTiles::score(const AttentionArgs& a, const AttentionScratch<uint16_t>& s, const Tile<uint16_t>& tile) {
    const uint16_t* keys[kTileGroups];
    const int64_t each = kTokenGroup / tile.group;
    for (int64_t g = tile.first; g < tile.count; ++g) {
        keys[g] = tile.keys[g * each];
        if (each == 1 && s.depth == a.head_dim) continue;
        uint16_t* laid = reinterpret_cast<uint16_t*>(s.rest) + g * kTokenGroup * s.depth;
        lay_keys(tile.keys + g * each, tile.group, a.head_dim, s.depth, laid);
        keys[g] = laid;
    }
    over_heads(0, s.heads, [&]<bool kBoth>(int64_t head, int64_t size) {
        const uint16_t* q = s.q + head * s.depth;
        float* scores = s.scores + head * kTokenTile + tile.first * kTokenGroup;
        int64_t g = tile.first;
        for (; g + 2 <= tile.count; g += 2, scores += 2 * kTokenGroup) {
            score_groups<kBoth, true>(q, s.depth, size, keys + g, scores, *s.ahead);
        }
        if (g < tile.count) score_groups<kBoth, false>(q, s.depth, size, keys + g, scores, *s.ahead);
    });
}

// Values of the positions of a span as tiles want them: [32 positions][16 columns][16 pairs][16 columns of a pair]; zeros up to
// multiples of 32 positions.
inline void lay_values(const Tile<uint16_t>& tile, int64_t width, Span span, uint16_t* to, Ahead& ahead) {
    constexpr int64_t kPairs = 16, kLine = 32, kBytes = kLine * sizeof(uint16_t); // of a cache line: elements, bytes
    const int64_t group = tile.group, begin = span.begin, end = span.end, last = round_up(end, kDepthStep);
    for (int64_t g = begin / kDepthStep * kDepthStep / group, p = g * group; p < last; ++g, p += group) {
        uint16_t* pairs = to + p / kDepthStep * (kDepthStep * width) + p % kDepthStep / 2 * kLine;
        const uint16_t* from = tile.values[g];
        if (p >= begin && p + group <= end) { // the usual case
            for (int64_t i = 0; i < group; i += 2, pairs += kLine) {
                uint16_t* line = pairs;
                for (int64_t column = 0; column < width; column += 64) {
                    fetch<4>(ahead, ahead.at);
                    for (int64_t c = column; c < min64(column + 64, width); c += 16, line += kPairs * kLine, from += kLine) {
                        __builtin_memcpy(line, from, kBytes);
                    }
                }
            }
            continue;
        }
        for (int64_t i = p; i < p + group; i += 2, pairs += kLine) {
            const bool first = i >= begin && i < end, second = i + 1 >= begin && i + 1 < end;
            for (int64_t c = 0; c < width; c += 16) {
                uint16_t* line = pairs + c * kPairs * 2;
                if (first || second) __builtin_memcpy(line, from + (i - p) * width + 2 * c, kBytes);
                else __builtin_memset(line, 0, kBytes);
                for (int64_t k = 0; k < kLine && first != second; k += 2) line[k + first] = 0;
            }
        }
    }
}

inline bool all_finite(const Tile<uint16_t>& tile, int64_t width, int64_t head_dim, Span span) {
    constexpr uint16_t kExponent = 0x7F80;
    int bad = 0;
    for (int64_t p = span.begin; p < span.end; ++p) {
        const uint16_t* from = value_row(tile.values[p / tile.group], p % tile.group, width, 0) + p % 2;
        for (int64_t i = 0; i < head_dim; ++i) bad |= (from[2 * i] & kExponent) == kExponent;
    }
    return !bad;
}

// Adds what so many times 32 positions are to 32 columns, or 16, of two tiles of heads, or of one.
template <bool kBoth, bool kTwo>
inline void add_columns(const uint16_t* weights, const uint16_t* values, int64_t width, int64_t steps, int64_t size, float* out) {
    const int64_t stride = width * static_cast<int64_t>(sizeof(float));
    OCTAVO_TILE_LOAD(0, out, stride);
    if constexpr (kTwo) OCTAVO_TILE_LOAD(1, out + 16, stride);
    if constexpr (kBoth) OCTAVO_TILE_LOAD(2, out + size * width, stride);
    if constexpr (kBoth && kTwo) OCTAVO_TILE_LOAD(3, out + size * width + 16, stride);
    for (int64_t step = 0; step < steps; ++step, weights += kDepthStep, values += kDepthStep * width) {
        multiply_tiles<kBoth, kTwo>(weights, kWeightStride<uint16_t>, size, values, values + kTileElements);
    }
    store_tiles<kBoth, kTwo>(out, width, size);
}

inline void InTiles::add(const AttentionArgs& a, const AttentionScratch<uint16_t>& s, const HeadStates& state,
                         const Tile<uint16_t>& tile, int64_t first_end, int64_t row0, int64_t row1, int64_t start) {
    const int64_t group = a.num_heads / a.num_kv_heads;
    uint16_t* weights = reinterpret_cast<uint16_t*>(s.scores);
    uint16_t* values = reinterpret_cast<uint16_t*>(s.rest) + keys_of_tile(a);
    for (int64_t r = row0; r < row1; ++r) { // softmax wrote only whole vectors that the row sees something of
        const Span span = seen(a, first_end, r, start);
        for (int64_t h = r * group; h < (r + 1) * group; ++h) {
            uint16_t* own = weights + h * kWeightStride<uint16_t>;
            for (int64_t i = 0; i < span.begin / W * W; i += W) vstore_bf16(own + i, vzero());
            for (int64_t i = round_up(span.end, W); i < kTokenTile; i += W) vstore_bf16(own + i, vzero());
        }
    }
    const auto multiply = [&](int64_t first, int64_t last, Span span) { // rows
        lay_values(tile, s.width, span, values, *s.ahead);
        const int64_t step = span.begin / kDepthStep, steps = (span.end + kDepthStep - 1) / kDepthStep - step;
        over_heads(first * group, last * group, [&]<bool kBoth>(int64_t head, int64_t size) {
            const uint16_t* own = weights + head * kWeightStride<uint16_t> + step * kDepthStep;
            const uint16_t* from = values + step * kDepthStep * s.width;
            float* out = state.acc + head * s.width;
            int64_t c = 0;
            for (; c + 32 <= s.width; c += 32) add_columns<kBoth, true>(own, from + c * kDepthStep, s.width, steps, size, out + c);
            if (c < s.width) add_columns<kBoth, false>(own, from + c * kDepthStep, s.width, steps, size, out + c);
        });
    };
    const Span upper = seen(a, first_end, row0, start), lower = seen(a, first_end, row1 - 1, start), all{upper.begin, lower.end};
    const bool alike = upper.begin == lower.begin && upper.end == lower.end;
    if (alike || all_finite(tile, s.width, a.head_dim, all)) return multiply(row0, row1, all);
    for (int64_t r = row0; r < row1; ++r) multiply(r, r + 1, seen(a, first_end, r, start));
}

bool attention_tiles(const AttentionArgs& a, const AttentionUnit* units, int64_t count, float* scratch) {
    if (a.kv_type == KVType::bf16 && a.out_bf16) return attend_all<uint16_t, InTiles>(a, units, count, scratch);
    return attention(a, units, count, scratch);
}

// The table with the kernels that use tiles in the place of those that do not.
constexpr KernelTable with_tiles(KernelTable table) {
    table.rows_of_chunk = 32 * kTilesAtOnce;
    table.rows_of_part = 256; // weights pass sooner
    table.linear_bf16 = linear_amx;
    table.attention_scratch = attention_scratch_tiles;
    table.attention = attention_tiles;
    return with_compact(table, linear_compact);
}
