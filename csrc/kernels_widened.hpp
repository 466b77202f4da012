// Products of many rows with bf16 weights where no instruction multiplies bf16. The first tile of rows widens a block's weights to
// fp32 on their way into its own products and leaves them in a cache, where the other tiles find them. Included inside the
// instruction set's own namespace, after kernels_linear.hpp.
//
// The results are those of tiles that widen weights for themselves, bit for bit: the same numbers meet in the same order.

constexpr int64_t kWidenedRows = 16 * kLinearRows; // at once, whose sums wait where a block has more inputs than are widened at once

// Inputs [begin, end) of a block, which rows from row0 on meet in turn. begin is a multiple of kWidenedInputs.
struct WidenedPart {
    int64_t block, begin, end, row0;
    float* weights; // [end - begin, kColumnBlock]
    float* sums;    // of the inputs before, [rows, kColumnBlock]
};

// The weights of a part, W * kLinearVecs of its columns.
class PlainPairs {
public:
    PlainPairs(const LinearArgs& a, const WidenedPart& part, int column)
        : from_(static_cast<const uint16_t*>(a.weight) + part.block * bf16_block_elements(a.k) + part.begin / kDepthStep * 2 * kTileElements +
                column / 16 * kTileElements + column % 16 * 2) {}

    inline __attribute__((always_inline)) void read(Vec (&pairs)[kLinearVecs]) const {
        for (int v = 0; v < kLinearVecs; v += kLineVecs) __builtin_prefetch(vector(v) + kNear);
        for (int v = 0; v < kLinearVecs; ++v) pairs[v] = vload(reinterpret_cast<const float*>(vector(v)));
    }
    // To the pair of inputs k and k + 1.
    inline __attribute__((always_inline)) void go_to(int64_t k) { from_ += k % kDepthStep ? 32 : 32 + kTileElements; }

private:
    inline __attribute__((always_inline)) const uint16_t* vector(int v) const {
        return from_ + (W * kLinearVecs > 16 ? v * W / 16 * kTileElements + v * W % 16 * 2 : v * W * 2);
    }

    const uint16_t* from_;
};

// Of weights widened before: `count` inputs, two at most.
template <int R, int V>
inline __attribute__((always_inline)) void multiply_widened(Vec (&acc)[R][V], RowBases<R, Input>& x, const float* weights, int64_t count) {
    const auto one = [&](int i) __attribute__((always_inline)) {
        Vec own[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) own[v] = vload(weights + i * kColumnBlock + v * W);
        multiply_input(acc, x.input(i), own);
    };
    x.hide_strides();
    one(0);
    if (count > 1) one(1);
    x.advance(2);
}

// A part whose weights a tile before has left.
template <int R, int V>
inline __attribute__((always_inline)) void multiply_part(Vec (&acc)[R][V], RowBases<R, Input>& x, const WidenedPart& part, int column,
                                                         PanelAhead& ahead) {
    const float* weights = part.weights + column;
    int64_t k = part.begin;
    for (; k + 2 <= part.end; k += 2, weights += 2 * kColumnBlock) {
        ahead.fetch();
        multiply_widened(acc, x, weights, 2);
    }
    if (k < part.end) multiply_widened(acc, x, weights, 1);
}

// A part whose weights this tile leaves for others.
template <int R, int V>
inline __attribute__((always_inline)) void widen_part(Vec (&acc)[R][V], RowBases<R, Input>& x, const LinearArgs& a, const WidenedPart& part,
                                                      int column, PanelAhead& ahead) {
    PlainPairs plain(a, part, column);
    float* weights = part.weights + column;
    int64_t k = part.begin;
    while (k + 2 <= part.end) {
        x.hide_strides();
        Vec pairs[V];
        plain.read(pairs);
        ahead.fetch();
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            Vec own[V];
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                own[v] = i ? vsecond(pairs[v]) : vfirst(pairs[v]);
                vstore(weights + i * kColumnBlock + v * W, own[v]);
            }
            multiply_input(acc, x.input(i), own);
        }
        weights += 2 * kColumnBlock;
        plain.go_to(k += 2);
        x.advance(2);
    }
    if (k == part.end) return;
    Vec pairs[V];
    plain.read(pairs);
    for (int v = 0; v < V; ++v) vstore(weights + v * W, vfirst(pairs[v]));
    multiply_widened(acc, x, weights, 1);
}

// R rows. kFirst: the first tile that meets the weights.
template <int R, bool kFirst>
__attribute__((noinline)) void tile_widened(const LinearArgs& a, const WidenedPart& part, int64_t row, const char* at, const char* other,
                                            int64_t step) {
    constexpr int V = kLinearVecs;
    PanelAhead ahead{at, other, step};
    for (int column = 0; column < kColumnBlock; column += V * W) {
        float* sums = part.sums + (row - part.row0) * kColumnBlock + column;
        Vec acc[R][V];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) acc[r][v] = part.begin ? vload(sums + r * kColumnBlock + v * W) : vzero();
        }
        RowBases<R, Input> x(static_cast<const Input*>(a.x) + row * a.x_stride + part.begin, a.x_stride);
        if constexpr (kFirst) widen_part(acc, x, a, part, column, ahead);
        else multiply_part(acc, x, part, column, ahead);
        if (part.end == a.k) {
            int64_t columns[V];
            for (int v = 0; v < V; ++v) columns[v] = part.block * kColumnBlock + column + v * W;
            store_tile(a, row, columns, acc);
            continue;
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) vstore(sums + r * kColumnBlock + v * W, acc[r][v]);
        }
    }
}

typedef void (*WidenedTile)(const LinearArgs&, const WidenedPart&, int64_t row, const char* at, const char* other, int64_t step);

// For tiles that are some of several: none has few rows.
template <bool kFirst> struct WidenedTiles {
    WidenedTile of[kLinearRows + 1]{};
    constexpr WidenedTiles() { fill<kLinearRows>(); }
    template <int R> constexpr void fill() {
        of[R] = tile_widened<R, kFirst>;
        if constexpr (R > kLinearRows / 2) fill<R - 1>();
    }
};
template <bool kFirst> constexpr WidenedTiles<kFirst> kWidenedTiles;

// A thread's own; on the stack it would be too much for some systems.
inline float* widened_memory() {
    alignas(64) static thread_local float memory[kWidenedInputs * kColumnBlock];
    return memory;
}

inline void linear_widened(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1, int64_t block_bytes) {
    float* weights = widened_memory();
    alignas(64) float sums[kWidenedRows * kColumnBlock];
    const EvenTiles groups(row1 - row0, (row1 - row0 + kWidenedRows - 1) / kWidenedRows);
    for (int64_t row = row0, group = 0; row < row1; row += groups.rows(group++)) {
        const int64_t count = (groups.rows(group) + kLinearRows - 1) / kLinearRows;
        const EvenTiles rows(groups.rows(group), count);
        const SharedAhead shared(a, block_bytes, count);
        for (int64_t block = block0; block < block1; ++block) {
            const char* own = static_cast<const char*>(a.weight) + block * block_bytes;
            const char* panel = panel_after(a, block, block1, block_bytes);
            PanelAhead ahead[kWidenedRows / kLinearRows];
            for (int64_t t = 0; t < count; ++t) ahead[t] = shared.of(t, panel, own);
            WidenedPart part{block, 0, 0, row, weights, sums};
            do {
                part.begin = part.end;
                part.end = min64(a.k, part.begin + kWidenedInputs);
                for (int64_t t = 0; t < count; ++t) {
                    PanelAhead& mine = ahead[t];
                    const WidenedTile* tiles = t == 0 ? kWidenedTiles<true>.of : kWidenedTiles<false>.of;
                    tiles[rows.rows(t)](a, part, row + rows.begin(t), mine.at, mine.other, mine.step);
                    mine.skip((part.end - part.begin) / 2 * (kColumnBlock / (W * kLinearVecs)));
                }
            } while (part.end < a.k);
        }
    }
    if (a.past_caches) vstream_end();
}

void linear_bf16(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    const int64_t block_bytes = bf16_block_elements(a.k) * 2;
    if (row1 - row0 > kLinearRows) return linear_widened(a, row0, row1, block0, block1, block_bytes);
    multiply_range(kTiles.bf16, a, row0, row1, block0, block1, block_bytes);
}
