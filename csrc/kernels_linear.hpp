// Packed weights and matrix products over them. Included inside the instruction set's own namespace, after kernels_tiles.hpp.
//
// bf16 weights: [n / 32][k / 32][2 tiles][16 pairs of inputs][16 columns][2], padded with zeros. fp32: [n / 32][k][32].
// Every output element has one accumulator that takes the inputs in ascending order, whatever tile computes it: this is the
// row contract. With OCTAVO_DOT_BF16, x is bf16 and a pair of inputs is one instruction; else x is fp32.

// Inputs [k, k + kDepthStep) of column n into their place in a tile.
inline void pack_step_bf16(const PackArgs& a, int64_t n, int64_t k, uint16_t* to) {
    const int64_t count = min64(kDepthStep, a.k - k);
    const uint16_t* bf16 = static_cast<const uint16_t*>(a.columns[n]) + k;
    const float* fp32 = static_cast<const float*>(a.columns[n]) + k;
    uint16_t values[kDepthStep] = {};
    if (!a.src_bf16) {
        for (int64_t i = 0; i < count; ++i) values[i] = to_bf16(fp32[i]);
    } else if (count == kDepthStep) {
        __builtin_memcpy(values, bf16, sizeof values);
    } else {
        __builtin_memcpy(values, bf16, count * sizeof(uint16_t));
    }
    for (int64_t i = 0; i < kDepthStep; i += 2) __builtin_memcpy(to + i * 16, values + i, 2 * sizeof(uint16_t));
}

// All columns of a block at each step: what is written lies in the first-level cache.
inline void pack_block_bf16(const PackArgs& a, int64_t n0, int64_t n1, uint16_t* dst) {
    for (int64_t k = 0; k < a.k; k += kDepthStep, dst += 2 * kTileElements) {
        for (int64_t n = n0; n < n1; ++n) pack_step_bf16(a, n, k, dst + n % kColumnBlock / 16 * kTileElements + n % 16 * 2);
    }
}

inline void pack_column_f32(const PackArgs& a, int64_t n, float* dst) {
    const uint16_t* bf16 = static_cast<const uint16_t*>(a.columns[n]);
    const float* fp32 = static_cast<const float*>(a.columns[n]);
    float* column = dst + n % kColumnBlock;
    for (int64_t k = 0; k < a.k; ++k) column[k * kColumnBlock] = a.src_bf16 ? from_bf16(bf16[k]) : fp32[k];
}

// The destination is zero beforehand.
void pack(const PackArgs& a, int64_t block0, int64_t block1) {
    for (int64_t block = block0; block < block1; ++block) {
        const int64_t n0 = block * kColumnBlock, n1 = min64(a.n, n0 + kColumnBlock), at = block - a.first_block;
        if (a.dst_bf16) {
            pack_block_bf16(a, n0, n1, static_cast<uint16_t*>(a.dst) + at * bf16_block_elements(a.k));
            continue;
        }
        for (int64_t n = n0; n < n1; ++n) pack_column_f32(a, n, static_cast<float*>(a.dst) + at * a.k * kColumnBlock);
    }
}

// Inputs [k, k + count) of a column, from the tile that holds them; count is at most kDepthStep.
inline void read_column_bf16(const uint16_t* tile, float* out, int64_t count) {
    for (int64_t i = 0; i + 1 < count; i += 2) {
        uint16_t pair[2];
        __builtin_memcpy(pair, tile + i * 16, sizeof pair);
        out[i] = from_bf16(pair[0]);
        out[i + 1] = from_bf16(pair[1]);
    }
    if (count % 2) out[count - 1] = from_bf16(tile[(count - 1) * 16]);
}

inline const uint16_t* column_bf16(const EmbeddingArgs& a, int64_t n) {
    return static_cast<const uint16_t*>(a.table) + n / kColumnBlock * bf16_block_elements(a.k) +
           n % kColumnBlock / 16 * kTileElements + n % 16 * 2;
}

// A column has a cache line of its own for each pair of inputs; hardware does not guess where those of the next id lie.
inline void embed_bf16(const uint16_t* tile, const uint16_t* next, float* out, int64_t depth) {
    for (int64_t k = 0; k < depth; k += kDepthStep) {
        for (int64_t i = 0; i < kDepthStep; i += 2) __builtin_prefetch(next + i * 16);
        if (k + kDepthStep <= depth) read_column_bf16(tile, out + k, kDepthStep);
        else read_column_bf16(tile, out + k, depth - k);
        tile += 2 * kTileElements;
        next += 2 * kTileElements;
    }
}

void embedding(const EmbeddingArgs& a, int64_t row0, int64_t row1) {
    for (int64_t r = row0; r < row1; ++r) {
        float* out = a.out + r * a.k;
        if (a.bf16) {
            embed_bf16(column_bf16(a, a.ids[r]), column_bf16(a, a.ids[r + 1 < row1 ? r + 1 : r]), out, a.k);
            continue;
        }
        const int64_t n = a.ids[r];
        const float* from = static_cast<const float*>(a.table) + n / kColumnBlock * a.k * kColumnBlock + n % kColumnBlock;
        for (int64_t k = 0; k < a.k; ++k) out[k] = from[k * kColumnBlock];
    }
}

#ifdef OCTAVO_DOT_BF16
typedef uint16_t Input;
constexpr bool kDot = true;
#else
typedef float Input;
constexpr bool kDot = false;
#endif

constexpr int64_t kNear = 2 * 2 * kTileElements; // ahead in the stream of weights: into the first-level cache
constexpr int64_t kFar = 2 * kNear;              // and into the second
constexpr int kLineVecs = W < 16 ? 16 / W : 1;   // vectors of pairs in a cache line

// acc[r][v] += the input x(r) of each row times the weights of all columns.
template <int R, int V, class X>
inline __attribute__((always_inline)) void multiply_input(Vec (&acc)[R][V], const X& x, const Vec (&weights)[V]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Vec input = vset(x(r));
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = vfma(input, weights[v], acc[r][v]);
    }
}

// acc[r][v] += the pair of inputs at k of each row times the pair row at w.
template <int R, int V>
inline __attribute__((always_inline)) void accumulate_pair(Vec (&acc)[R][V], const Input* const (&x)[R], int64_t k,
                                                           const uint16_t* const (&w)[V], int64_t at) {
#ifdef OCTAVO_DOT_BF16
    Vec weights[V];
    for (int v = 0; v < V; ++v) weights[v] = vload(reinterpret_cast<const float*>(w[v] + at));
    for (int r = 0; r < R; ++r) {
        const int32_t pair = pair_at(x[r] + k);
        for (int v = 0; v < V; ++v) acc[r][v] = vdot(acc[r][v], pair, weights[v]);
    }
#else
    // One input after the other: the weights of both would not leave registers enough for the sums.
    Vec weights[V];
    for (int v = 0; v < V; ++v) weights[v] = vfirst(w[v] + at);
    multiply_input(acc, [&](int r) __attribute__((always_inline)) { return x[r][k]; }, weights);
    for (int v = 0; v < V; ++v) weights[v] = vsecond(w[v] + at);
    multiply_input(acc, [&](int r) __attribute__((always_inline)) { return x[r][k + 1]; }, weights);
#endif
}

// The last input of an odd number of them; nothing is read beyond it.
template <int R, int V>
inline void accumulate_last(Vec (&acc)[R][V], const Input* const (&x)[R], int64_t k, const uint16_t* const (&w)[V], int64_t at) {
#ifdef OCTAVO_DOT_BF16
    Input last[R][2];
    const Input* rows[R];
    for (int r = 0; r < R; ++r) {
        last[r][0] = x[r][k];
        last[r][1] = 0;
        rows[r] = last[r];
    }
    accumulate_pair<R, V>(acc, rows, 0, w, at);
#else
    Vec weights[V]; // no product more than tiles of many rows add: of 0 and 0 it would make 0 of a sum that is -0
    for (int v = 0; v < V; ++v) weights[v] = vfirst(w[v] + at);
    multiply_input(acc, [&](int r) __attribute__((always_inline)) { return x[r][k]; }, weights);
#endif
}

// Fetches the stream of weights w a few steps ahead; of a panel that tiles before have fetched, the last step is left. A row or
// two in wide registers load so densely that hardware does as well or better alone.
template <bool kAhead, int R> inline __attribute__((always_inline)) void fetch_stream(const uint16_t* w) {
    constexpr bool kDense = !kAhead && R <= 2 && W >= 16;
    if constexpr (!kDense || !kDot) __builtin_prefetch(w + kNear);
    if constexpr (!kDense && !kAhead) __builtin_prefetch(w + kFar, 0, 2);
}

// R rows x V vectors of columns. w[v] points at the first pair of vector v's columns.
template <bool kAhead, int R, int V>
inline __attribute__((always_inline)) void multiply_bf16(const LinearArgs& a, int64_t row, const uint16_t* const (&w)[V],
                                                         Vec (&acc)[R][V], PanelAhead& ahead) {
    const Input* x[R];
    for (int r = 0; r < R; ++r) {
        x[r] = static_cast<const Input*>(a.x) + (row + r) * a.x_stride;
        for (int v = 0; v < V; ++v) acc[r][v] = vzero();
    }
    int64_t steps = a.k / kDepthStep, k = 0;
    for (int64_t step = 0; step < steps; ++step, k += kDepthStep) {
        for (int pair = 0; pair < kDepthStep / 2; ++pair) {
            const int64_t at = step * 2 * kTileElements + pair * 32;
            for (int v = 0; v < V; v += kLineVecs) fetch_stream<kAhead, R>(w[v] + at);
            if constexpr (kAhead) ahead.fetch();
            accumulate_pair<R, V>(acc, x, k + 2 * pair, w, at);
        }
    }
    const int64_t base = steps * 2 * kTileElements;
    int64_t rest = a.k - k;
    for (int64_t i = 0; i + 1 < rest; i += 2) accumulate_pair<R, V>(acc, x, k + i, w, base + i * 16);
    if (rest & 1) accumulate_last<R, V>(acc, x, a.k - 1, w, base + (rest - 1) * 16);
}

// R rows x B blocks of columns.
template <int R, int B, bool kAhead>
__attribute__((noinline)) void tile_bf16(const LinearArgs& a, int64_t row, int64_t block, const char* at, const char* other, int64_t step) {
    PanelAhead ahead{at, other, step};
    constexpr int V = B * kLinearVecs, kSpan = W * kLinearVecs;
    const uint16_t* weights = static_cast<const uint16_t*>(a.weight) + block * bf16_block_elements(a.k);
    for (int column = 0; column < kColumnBlock; column += kSpan) {
        const uint16_t* w[V];
        for (int v = 0; v < V; ++v) {
            int place = column + v % kLinearVecs * W;
            w[v] = weights + v / kLinearVecs * bf16_block_elements(a.k) + place / 16 * kTileElements + place % 16 * 2;
        }
        Vec acc[R][V];
        multiply_bf16<kAhead>(a, row, w, acc, ahead);
        int64_t columns[V];
        for (int v = 0; v < V; ++v) columns[v] = (block + v / kLinearVecs) * kColumnBlock + column + v % kLinearVecs * W;
        store_tile(a, row, columns, acc);
    }
}

template <int R, int B>
__attribute__((noinline)) void tile_f32(const LinearArgs& a, int64_t row, int64_t block, const char*, const char*, int64_t) {
    constexpr int V = B * kLinearVecs, kSpan = W * kLinearVecs;
    const int64_t block_elements = a.k * kColumnBlock;
    const float* x[R];
    for (int r = 0; r < R; ++r) x[r] = static_cast<const float*>(a.x) + (row + r) * a.x_stride;
    for (int column = 0; column < kColumnBlock; column += kSpan) {
        const float* w = static_cast<const float*>(a.weight) + block * block_elements + column;
        Vec acc[R][V];
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) acc[r][v] = vzero();
        }
        for (int64_t k = 0; k < a.k; ++k, w += kColumnBlock) {
            Vec weights[V];
            for (int v = 0; v < V; ++v) weights[v] = vload(w + v / kLinearVecs * block_elements + v % kLinearVecs * W);
            multiply_input(acc, [&](int r) __attribute__((always_inline)) { return x[r][k]; }, weights);
        }
        int64_t columns[V];
        for (int v = 0; v < V; ++v) columns[v] = (block + v / kLinearVecs) * kColumnBlock + column + v % kLinearVecs * W;
        store_tile(a, row, columns, acc);
    }
}

// The last are a PanelAhead in registers: through memory a tile would wait until the results of the one before have left the core.
typedef void (*TileKernel)(const LinearArgs&, int64_t row, int64_t block, const char* at, const char* other, int64_t step);

// Kernels for R = 1 .. kLinearRows rows of one block and, where registers allow, of two: more chains in flight. The last are
// for tiles that are one of several, and so have at least half as many rows, or for one that is alone where kAloneAhead says so.
struct TileKernels {
    TileKernel one[kLinearRows + 1], two[kLinearRows + 1], ahead[kLinearRows + 1];
};

template <int R> constexpr int blocks_at_once() { return R * 4 <= kLinearRows ? 2 : 1; }
template <int R> constexpr bool fetches_ahead() { return kAloneAhead || (kDot && R >= kLinearRows / 2); }

template <int R> constexpr void fill_tiles(TileKernels& bf16, TileKernels& f32) {
    if constexpr (R > 0) {
        bf16.one[R] = tile_bf16<R, 1, false>;
        bf16.ahead[R] = tile_bf16<R, 1, fetches_ahead<R>()>;
        f32.one[R] = f32.ahead[R] = tile_f32<R, 1>;
        if constexpr (blocks_at_once<R>() == 2) {
            if constexpr (!kAloneAhead) bf16.two[R] = tile_bf16<R, 2, false>;
            f32.two[R] = tile_f32<R, 2>;
        }
        fill_tiles<R - 1>(bf16, f32);
    }
}

struct AllTiles {
    TileKernels bf16{}, f32{};
    constexpr AllTiles() { fill_tiles<kLinearRows>(bf16, f32); }
};

constexpr AllTiles kTiles;

inline void multiply_alone(const TileKernels& tiles, const LinearArgs& a, int64_t row, int64_t rows, int64_t block0, int64_t block1,
                           int64_t block_bytes) {
    for (int64_t block = block0; block < block1;) {
        const bool both = tiles.two[rows] && block + 1 < block1;
        const PanelAhead ahead = fetched_alone(a, panel_after(a, block, block1, block_bytes), block_bytes);
        if (both) tiles.two[rows](a, row, block, nullptr, nullptr, 0);
        else if (ahead) tiles.ahead[rows](a, row, block, ahead.at, ahead.other, ahead.step);
        else tiles.one[rows](a, row, block, nullptr, nullptr, 0);
        block += both ? 2 : 1;
    }
}

// Each panel of weights meets all rows before the next one is read: it comes from memory once. Tiles are nearly equal: none has few
// rows.
inline void multiply_range(const TileKernels& tiles, const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0,
                           int64_t block1, int64_t block_bytes) {
    const int64_t count = (row1 - row0 + kLinearRows - 1) / kLinearRows;
    if (count == 1) {
        multiply_alone(tiles, a, row0, row1 - row0, block0, block1, block_bytes);
    } else if (count > 1) {
        const EvenTiles rows(row1 - row0, count);
        const SharedAhead shared(a, block_bytes, count);
        for (int64_t block = block0; block < block1; ++block) {
            const char* own = static_cast<const char*>(a.weight) + block * block_bytes;
            const char* panel = panel_after(a, block, block1, block_bytes);
            for (int64_t t = 0; t < count; ++t) {
                const PanelAhead ahead = shared.of(t, panel, own);
                tiles.ahead[rows.rows(t)](a, row0 + rows.begin(t), block, ahead.at, ahead.other, ahead.step);
            }
        }
    }
    if (a.past_caches) vstream_end();
}

#ifdef OCTAVO_DOT_BF16
void linear_bf16(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    multiply_range(kTiles.bf16, a, row0, row1, block0, block1, bf16_block_elements(a.k) * 2);
}
#endif

void linear_f32(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    multiply_range(kTiles.f32, a, row0, row1, block0, block1, a.k * kColumnBlock * 4);
}
