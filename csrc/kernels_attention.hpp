// Paged causal attention with an online softmax. Included inside the instruction set's own namespace, after kernels_kv.hpp.
//
// A unit is a few query rows of one sequence with all query heads of one kv head. It walks the sequence in tiles of kTokenTile
// positions and starts afresh at every kPartition of them, both aligned to absolute position; the states of partitions are
// merged in order. A row's arithmetic is the same in any unit: scores in ascending dimension, values in ascending position,
// tiles in order. Positions that a row does not see are never multiplied into it: whatever lies there cannot matter.
//
// Queries and weights are fp32. Where there are dot products of bf16 pairs and the result is bf16 too, they are bf16 beside bf16
// keys and values: two neighbouring dimensions, or positions, are one instruction.
//
// int8 keys and values are multiplied as they are, with queries and weights in 16 bits, whole numbers of a scale for each head: a
// query's largest magnitude is 32,767 and so is the largest of a tile's weights. Sums are exact, so that neither their order nor a
// weight of 0 matters. A key's scale goes into its score, a value's into its weight.
//
// Keys and values go from qkv to the cache here too: within the unit where the row is its sequence's only one, as no other unit
// of this step reads what it wrote and the block is about to be read anyhow; before all units where there are several.

// What of a piece is still to be asked for. Loops keep it in registers.
struct AheadAt {
    const char *next, *end;
};

// Memory that will be read soon, asked for piece by piece while something else is computed: as a burst it would only wait. It
// comes into the second-level cache: the first has few places for lines under way, and pieces would come half as fast.
struct Ahead {
    static constexpr int kLocality = 2;
    static constexpr int kOfSoftmax = 24; // lines that go with the softmax of a head: it waits for itself, memory need not
    const char* pieces[2 * kMostGroups];
    AheadAt at;
    int64_t bytes; // of a piece; a multiple of 256
    int count;
};

// The same into the first-level cache: for units of one row, as scores, sums and keys of several leave no room there.
struct NearAhead : Ahead {
    static constexpr int kLocality = 3;
#ifndef OCTAVO_DOT_BF16
    static constexpr int kOfSoftmax = 8; // more at once would wait for one another
#endif
};

template <int kLines, class A> inline __attribute__((always_inline)) void fetch(A& ahead, AheadAt& at) {
    if (at.next >= at.end) {
        if (ahead.count == 0) return;
        at.next = ahead.pieces[--ahead.count];
        at.end = at.next + ahead.bytes;
    }
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(at.next + 64 * i, 0, A::kLocality);
    at.next += 64 * kLines;
}

template <class A> inline void fetch_rest(A& ahead) {
    while (ahead.count > 0 || ahead.at.next < ahead.at.end) fetch<4>(ahead, ahead.at);
}

// Lines for each step of a panel that takes V vectors at once: so that a tile's are all asked for while another is computed.
template <class T, int V> constexpr int lines_of() { return V * W >= 32 && sizeof(T) > 1 ? 2 : 1; }

// Of each head of a unit: the values, weighted; W sums of weights, each of every W-th position; what is subtracted from scores.
struct HeadStates {
    float *acc, *sums, *max;
};

// What the sums of products with such queries and weights are, and whether these are exact.
template <class F> struct Summed {
    using Sum = Vec;
};
template <> struct Summed<int16_t> {
    using Sum = Ints;
};
template <class F> using SumOf = typename Summed<F>::Sum;
template <class F> constexpr bool kExact = __is_same(F, int16_t);
inline void set_zero(Vec& v) { v = vzero(); }
inline void set_zero(Ints& v) { v = izero(); }
inline Vec as_floats(Vec v) { return v; }
inline Vec as_floats(Ints v) { return ifloat(v); }

// F: what queries and weights are, float, bf16, or whole numbers of q_scales and scales. A: how memory is asked for.
template <class F, class A = Ahead> struct AttentionScratch {
    HeadStates total, part;
    F* q;
    float* scores;
    float *q_scales, *scales; // of each head
    Gathered gathered;
    int64_t heads, width, depth; // of values and results, and of queries; zeros from head_dim on
    char* rest;                  // as much memory as the kind of products has asked for
    A* ahead;
};

// A head's weights lie where its scores were.
template <class F> constexpr int64_t kWeightStride = kTokenTile * sizeof(float) / sizeof(F);

inline int64_t padded_dim(int64_t head_dim) { return round_up(head_dim, 16); }

int64_t attention_state(const AttentionArgs& a, int64_t rows) {
    return round_up(rows * (a.num_heads / a.num_kv_heads) * (padded_dim(a.head_dim) + W + 1), 16);
}

[[maybe_unused]] int64_t attention_scratch(const AttentionArgs& a, int64_t rows) {
    const int64_t heads = rows * (a.num_heads / a.num_kv_heads), width = padded_dim(a.head_dim);
    return 2 * attention_state(a, rows) + heads * (width + kTokenTile + 2) + 16 + 2 * kTokenTile * (width + 1);
}

inline HeadStates states_at(float* memory, int64_t heads, int64_t width) {
    return {memory, memory + heads * width, memory + heads * (width + W)};
}

template <class F, class A>
inline AttentionScratch<F, A> lay_out(const AttentionArgs& a, const AttentionUnit& u, int64_t depth, float* scratch, A& ahead) {
    AttentionScratch<F, A> s;
    s.ahead = &ahead;
    const int64_t rows = u.row1 - u.row0, state = attention_state(a, rows);
    s.heads = rows * (a.num_heads / a.num_kv_heads);
    s.width = padded_dim(a.head_dim);
    s.depth = depth;
    float* values = scratch + kTokenTile * s.width;
    float* scales = values + kTokenTile * s.width;
    s.gathered = {reinterpret_cast<char*>(scratch), reinterpret_cast<char*>(values), scales, s.width};
    float* q = scales + 2 * kTokenTile;
    s.q = reinterpret_cast<F*>(q);
    s.scores = q + s.heads * s.width;
    float* states = s.scores + s.heads * kTokenTile;
    s.total = states_at(u.state ? u.state : states, s.heads, s.width);
    s.part = states_at(states + state, s.heads, s.width);
    s.q_scales = states + 2 * state;
    s.scales = s.q_scales + s.heads;
    s.rest = reinterpret_cast<char*>(s.q_scales + round_up(2 * s.heads, 16));
    return s;
}

inline void clear(const HeadStates& state, int64_t heads, int64_t width) {
    for (int64_t i = 0; i < heads; ++i) {
        state.max[i] = -__builtin_inff();
        vstore(state.sums + i * W, vzero());
    }
    for (int64_t i = 0; i < heads * width; i += W) vstore(state.acc + i, vzero());
}

inline float exp_of(float x) {
    float lanes[W];
    vstore(lanes, vexp(vset(x)));
    return lanes[0];
}

// Takes `part`, of later positions, into `total`. A head that saw nothing has the sum 0.
inline void merge(const HeadStates& total, const HeadStates& part, int64_t heads, int64_t width) {
    for (int64_t h = 0; h < heads; ++h) {
        const Vec added = vload(part.sums + h * W), before = vload(total.sums + h * W);
        if (vsum(added) == 0.0f) continue;
        float* to = total.acc + h * width;
        const float* from = part.acc + h * width;
        if (vsum(before) == 0.0f) {
            total.max[h] = part.max[h];
            vstore(total.sums + h * W, added);
            for (int64_t i = 0; i < width; i += W) vstore(to + i, vload(from + i));
            continue;
        }
        const float top = total.max[h] > part.max[h] ? total.max[h] : part.max[h];
        const float old = exp_of(total.max[h] - top), add = exp_of(part.max[h] - top);
        const Vec a = vset(old), b = vset(add);
        total.max[h] = top;
        vstore(total.sums + h * W, vfma(added, b, vmul(before, a)));
        for (int64_t i = 0; i < width; i += W) vstore(to + i, vfma(vload(from + i), b, vmul(vload(to + i), a)));
    }
}

// Element i (even), and i + 1, of W positions in groups of G: where a vector is longer than a group, k has the places of all
// groups that it takes.
template <int G> constexpr int kJoined = W > G ? W / G : 1;
template <int G> inline Vec keys_even(const uint16_t* const* k, int64_t i) {
    if constexpr (kJoined<G> > 1) return vfirst<kJoined<G>>(k, i * G);
    else return vfirst(k[0] + i * G);
}
template <int G> inline Vec keys_odd(const uint16_t* const* k, int64_t i) {
    if constexpr (kJoined<G> > 1) return vsecond<kJoined<G>>(k, i * G);
    else return vsecond(k[0] + i * G);
}
template <int G> inline Vec keys_even(const float* const* k, int64_t i) {
    if constexpr (kJoined<G> > 1) return vload<kJoined<G>>(k, i * G);
    else return vload(k[0] + i * G);
}
template <int G> inline Vec keys_odd(const float* const* k, int64_t i) { return keys_even<G>(k, i + 1); }

// acc[r][v] += q[r] . keys over dimensions i (even) and i + 1.
template <int G, class T, int R, int V>
inline __attribute__((always_inline)) void add_dimensions(Vec (&acc)[R][V], const float* q, int64_t ldq, const T* const* keys,
                                                          int64_t i) {
    Vec k[V];
    for (int v = 0; v < V; ++v) k[v] = keys_even<G>(keys + v * kJoined<G>, i);
    for (int r = 0; r < R; ++r) {
        const Vec x = vset(q[r * ldq + i]);
        for (int v = 0; v < V; ++v) acc[r][v] = vfma(x, k[v], acc[r][v]);
    }
    for (int v = 0; v < V; ++v) k[v] = keys_odd<G>(keys + v * kJoined<G>, i);
    for (int r = 0; r < R; ++r) {
        const Vec x = vset(q[r * ldq + i + 1]);
        for (int v = 0; v < V; ++v) acc[r][v] = vfma(x, k[v], acc[r][v]);
    }
}

template <int G> inline IntPairs key_pairs(const int8_t* const* k, int64_t i) {
    if constexpr (kJoined<G> > 1) return ipairs<kJoined<G>>(k, i * G);
    else return ipairs(k[0] + i * G);
}

template <int G, class T, int R, int V>
inline __attribute__((always_inline)) void add_dimensions(Ints (&acc)[R][V], const int16_t* q, int64_t ldq, const T* const* keys, int64_t i) {
    IntPairs k[V];
    for (int v = 0; v < V; ++v) k[v] = key_pairs<G>(keys + v * kJoined<G>, i);
    for (int r = 0; r < R; ++r) {
        const IntPairs pair = iset(pair_at(q + r * ldq + i));
        for (int v = 0; v < V; ++v) idot(acc[r][v], k[v], pair);
    }
}

#ifdef OCTAVO_DOT_BF16
template <int G> inline Vec key_pairs(const uint16_t* const* k, int64_t i) {
    if constexpr (kJoined<G> > 1) return vpairs<kJoined<G>>(k, i * G);
    else return vpairs(k[0] + i * G);
}

template <int G, class T, int R, int V>
inline __attribute__((always_inline)) void add_dimensions(Vec (&acc)[R][V], const uint16_t* q, int64_t ldq, const T* const* keys,
                                                          int64_t i) {
    Vec k[V];
    for (int v = 0; v < V; ++v) k[v] = key_pairs<G>(keys + v * kJoined<G>, i);
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) acc[r][v] = vdot(acc[r][v], pair_at(q + r * ldq + i), k[v]);
    }
}
#endif

// scores[r][v * W ..] = q[r] . keys, for R rows and V vectors of positions.
template <int G, class T, class F, int R, int V, class A>
inline __attribute__((always_inline)) void score_panel(const F* q, int64_t ldq, const T* const* keys, int64_t dim,
                                                       float* scores, A& ahead) {
    SumOf<F> acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) set_zero(acc[r][v]);
    }
    AheadAt at = ahead.at;
    const T* own[V * kJoined<G>]; // in registers, as the queries' places are
#pragma GCC unroll 16
    for (int v = 0; v < V * kJoined<G>; ++v) own[v] = keys[v];
    for (int64_t i = 0; i < dim; i += 2) {
        fetch<lines_of<T, V>()>(ahead, at);
        add_dimensions<G, T>(acc, q, ldq, own, i);
    }
    ahead.at = at;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) vstore(scores + r * kTokenTile + v * W, as_floats(acc[r][v]));
    }
}

// Where a group's values of position i begin, for columns from `column`.
template <class T> inline const T* value_row(const T* group, int64_t i, int64_t width, int64_t column) {
    return kPaired<T> ? group + i / 2 * 2 * width + column * 2 : group + i * width + column;
}
inline Vec value_even(const uint16_t* row, int64_t c) { return vfirst(row + 2 * c); }
inline Vec value_odd(const uint16_t* row, int64_t c) { return vsecond(row + 2 * c); }
inline Vec value_even(const float* row, int64_t c) { return vload(row + c); }
inline Vec value_odd(const float* row, int64_t c) { return vload(row + c); }

struct Columns {
    int64_t width, first;
    int64_t group; // positions of a group
};

template <bool kOdd, class T, int R, int V>
inline __attribute__((always_inline)) void add_position(Vec (&acc)[R][V], const float* weights, const T* group, int64_t i,
                                                        Columns at) {
    const T* row = value_row(group, i, at.width, at.first);
    Vec x[V];
    for (int v = 0; v < V; ++v) x[v] = kOdd ? value_odd(row, v * W) : value_even(row, v * W);
    for (int r = 0; r < R; ++r) {
        const Vec w = vset(weights[r * kWeightStride<float> + i]);
        for (int v = 0; v < V; ++v) acc[r][v] = vfma(w, x[v], acc[r][v]);
    }
}

// Positions i (even) and i + 1.
template <class T, int R, int V>
inline __attribute__((always_inline)) void add_positions(Vec (&acc)[R][V], const float* weights, const T* group, int64_t i,
                                                         Columns at) {
    add_position<false>(acc, weights, group, i, at);
    add_position<true>(acc, weights, group, i + 1, at);
}

template <class T, int R, int V>
inline __attribute__((always_inline)) void add_positions(Ints (&acc)[R][V], const int16_t* weights, const T* group, int64_t i, Columns at) {
    const T* row = value_row(group, i, at.width, at.first);
    IntPairs x[V];
    for (int v = 0; v < V; ++v) x[v] = ipairs(row + 2 * v * W);
    for (int r = 0; r < R; ++r) {
        const IntPairs pair = iset(pair_at(weights + r * kWeightStride<int16_t> + i));
        for (int v = 0; v < V; ++v) idot(acc[r][v], x[v], pair);
    }
}

#ifdef OCTAVO_DOT_BF16
// kKept: of each pair, the bits that count.
template <uint32_t kKept, class T, int R, int V>
inline __attribute__((always_inline)) void add_dots(Vec (&acc)[R][V], const uint16_t* weights, const T* group, int64_t i, Columns at) {
    const T* row = value_row(group, i, at.width, at.first);
    Vec x[V];
    for (int v = 0; v < V; ++v) x[v] = vpairs<kKept>(row + 2 * v * W);
    for (int r = 0; r < R; ++r) {
        const int32_t pair = pair_at(weights + r * kWeightStride<uint16_t> + i);
        for (int v = 0; v < V; ++v) acc[r][v] = vdot(acc[r][v], pair, x[v]);
    }
}

// The other position of the pair is not seen: its weight is 0, and its value may be anything.
template <bool kOdd, class T, int R, int V>
inline __attribute__((always_inline)) void add_position(Vec (&acc)[R][V], const uint16_t* weights, const T* group, int64_t i,
                                                        Columns at) {
    add_dots<kOdd ? 0xFFFF0000u : 0xFFFFu>(acc, weights, group, i - kOdd, at);
}

template <class T, int R, int V>
inline __attribute__((always_inline)) void add_positions(Vec (&acc)[R][V], const uint16_t* weights, const T* group, int64_t i,
                                                         Columns at) {
    add_dots<~0u>(acc, weights, group, i, at);
}
#endif

// out[r][v * W ..] += weights[r] times the values of positions [begin, end) of the tile, ascending; exact ones, of pairs of
// positions, all at once, and then times scales[r].
template <class T, class F, int R, int V, class A>
inline __attribute__((always_inline)) void value_panel(const F* weights, const float* scales, const T* const* groups, Columns at,
                                                       int64_t begin, int64_t end, float* out, int64_t ldo, A& ahead) {
    SumOf<F> acc[R][V];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            if constexpr (kExact<F>) acc[r][v] = izero();
            else acc[r][v] = vload(out + r * ldo + v * W);
        }
    }
    AheadAt next = ahead.at;
    int64_t g = begin / at.group, i = begin % at.group;
    for (int64_t p = begin - i; p < end; p += at.group, ++g, i = 0) {
        const int64_t stop = min64(end - p, at.group);
        const F* w = weights + p;
        const T* group = groups[g];
        if constexpr (!kExact<F>) {
            if (i % 2) add_position<true>(acc, w, group, i, at), ++i;
        }
        for (; i + 1 < stop; i += 2) {
            fetch<lines_of<T, V>()>(ahead, next);
            add_positions(acc, w, group, i, at);
        }
        if constexpr (!kExact<F>) {
            if (i < stop) add_position<false>(acc, w, group, i, at);
        }
    }
    ahead.at = next;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            float* to = out + r * ldo + v * W;
            if constexpr (kExact<F>) vstore(to, vfma(ifloat(acc[r][v]), vset(scales[r]), vload(to)));
            else vstore(to, acc[r][v]);
        }
    }
}

template <int G> struct ScorePanels {
    template <class T, int R, int V> struct Panel {
        template <class F, class A>
        static void run(int64_t row, const F* q, int64_t ldq, const T* const* keys, int64_t dim, float* scores, A* ahead) {
            score_panel<G, T, F, R, V>(q + row * ldq, ldq, keys, dim, scores + row * kTokenTile, *ahead);
        }
    };
};

template <class T, int R, int V> struct ValuePanel {
    template <class F, class A>
    static void run(int64_t row, const F* weights, const float* scales, const T* const* groups, Columns at, int64_t begin,
                    int64_t end, float* out, int64_t ldo, A* ahead) {
        value_panel<T, F, R, V>(weights + row * kWeightStride<F>, scales + row, groups, at, begin, end, out + row * ldo, ldo, *ahead);
    }
};

// Panel::run for rows [0, rows), as many at once as registers hold.
template <template <class, int, int> class Panel, class T, int V, class... Args> void over_panels(int64_t rows, Args... args) {
    constexpr int kMost = kAttentionRows;
    int64_t r = 0;
    for (; r + kMost <= rows; r += kMost) Panel<T, kMost, V>::run(r, args...);
    switch (rows - r) {
    case 5: return Panel<T, kMost < 5 ? 1 : 5, V>::run(r, args...);
    case 4: return Panel<T, kMost < 5 ? 1 : 4, V>::run(r, args...);
    case 3: return Panel<T, 3, V>::run(r, args...);
    case 2: return Panel<T, 2, V>::run(r, args...);
    case 1: return Panel<T, 1, V>::run(r, args...);
    default: return;
    }
}

// Positions that a unit walks: its first row sees those below first_end, each further row one more.
struct Reach {
    int64_t first_end, last_end;
    int64_t start, stop; // of the walk; start is a multiple of kTokenTile
};

inline Reach reach_of(const AttentionArgs& a, const AttentionUnit& u) {
    const int64_t first_end = a.seq_lens[u.seq] - (a.query_start[u.seq + 1] - 1 - u.row0);
    const int64_t last_end = first_end + (u.row1 - u.row0) - 1;
    const int64_t begin = a.window > 0 ? max64(0, first_end - a.window) : 0;
    return {first_end, last_end, max64(begin / kTokenTile * kTokenTile, int64_t{u.part0} * kPartition),
            min64(last_end, int64_t{u.part1} * kPartition)};
}

// Asks for the first line of each block of the tile at `start`: blocks lie anywhere, and finding where takes longer than the
// rest of a block once that is known.
template <class T>
inline void touch(const AttentionArgs& a, const AttentionUnit& u, int64_t start, int64_t stop, int64_t group) {
    over_groups<T>(a, u, start, min64(stop, start + kTokenTile), 0, group, [&](int64_t, const Head<T>& head, int64_t offset) {
        __builtin_prefetch(head.keys + offset * a.head_dim);
    });
}

// The tile being computed and the one after it, which is found when its memory is asked for: finding it again takes time that
// small blocks feel.
template <class T> struct Tiles {
    Tile<T> both[2];
    int at = 0;
    Tile<T>& now() { return both[at]; }
    Tile<T>& next() { return both[1 - at]; }
    void step() { at = 1 - at; }
};

// Finds the tile at `start` and aims at its groups, the first first. Where a block does not exist, at none.
template <class T>
inline void aim(const AttentionArgs& a, const AttentionUnit& u, int64_t start, int64_t stop, Ahead& ahead, Tile<T>& tile) {
    const int group = tile.group = group_of(a.block_size, a.head_dim);
    const int64_t end = min64(stop, start + kTokenTile);
    ahead.bytes = round_up(group * a.head_dim * static_cast<int64_t>(sizeof(T)), 256);
    ahead.at = {};
    ahead.count = 0;
    tile.found = group && start < end && find_groups(a, u, start, start, end, tile);
    if (!tile.found) return;
    const int64_t count = (end - start + group - 1) / group;
    for (int64_t g = count; g-- > 0;) {
        ahead.pieces[ahead.count++] = reinterpret_cast<const char*>(tile.values[g]);
        ahead.pieces[ahead.count++] = reinterpret_cast<const char*>(tile.keys[g]);
    }
    for (int64_t g = 0; kQuantized<T> && g < count; ++g) {
        __builtin_prefetch(tile.key_scales[g]);
        __builtin_prefetch(tile.value_scales[g]);
    }
    if (start + kTokenTile < stop) touch<T>(a, u, start + kTokenTile, stop, group);
}

// The first tile of a unit, if there is one.
template <class T> inline void aim_first(const AttentionArgs& a, const AttentionUnit* u, Ahead& ahead, Tile<T>& tile) {
    ahead.at = {};
    ahead.count = 0;
    if (!u) return;
    const Reach reach = reach_of(a, *u);
    aim<T>(a, *u, reach.start, reach.stop, ahead, tile);
}

template <int G, class T, int V, class F, class A>
inline void score_vectors(const AttentionArgs& a, const AttentionScratch<F, A>& s, const T* const* keys, int64_t v) {
    const F* q = s.q;
    over_panels<ScorePanels<G>::template Panel, T, V>(s.heads, q, s.depth, keys + v * kJoined<G>,
                                                      static_cast<int64_t>(a.head_dim), s.scores + v * W, s.ahead);
}

template <int G, class T, class F, class A>
inline void multiply_keys(const AttentionArgs& a, const AttentionScratch<F, A>& s, const Tile<T>& tile) {
    constexpr int kPerGroup = kTokenGroup / W, kLane = kPaired<T> ? 2 * W : W; // elements from one vector to the next
    int64_t v = tile.first * kPerGroup;
    const int64_t end = tile.count * kPerGroup;
    const T* vectors[kTokenTile / W];
    const T* const* keys = tile.keys;
    if constexpr (G > W) { // a group is several vectors
        for (int64_t i = v; i < end; ++i) vectors[i] = tile.keys[i / (G / W)] + i % (G / W) * kLane;
        keys = vectors;
    }
    for (; v + kAttentionVecs <= end; v += kAttentionVecs) score_vectors<G, T, kAttentionVecs>(a, s, keys, v);
    switch (end - v) { // one vector after another would wait for itself
    case 3: return score_vectors<G, T, kAttentionVecs < 3 ? 1 : 3>(a, s, keys, v);
    case 2: return score_vectors<G, T, kAttentionVecs < 2 ? 1 : 2>(a, s, keys, v);
    case 1: return score_vectors<G, T, 1>(a, s, keys, v);
    default: return;
    }
}

template <class T, class F, class A>
inline void score_tile(const AttentionArgs& a, const AttentionScratch<F, A>& s, const Tile<T>& tile) {
    switch (tile.group) {
    case 4: multiply_keys<4>(a, s, tile); break;
    case 8: multiply_keys<8>(a, s, tile); break;
    default: multiply_keys<kTokenGroup>(a, s, tile);
    }
}

inline float whole_numbers_of(float largest) { return largest >= kLeastMagnitude ? 32767.0f / largest : 0.0f; }
inline float scale_of(float largest) { return largest < kLeastMagnitude ? 0.0f : largest / 32767.0f; } // NaN of NaN

inline void store_factors(float* p, Vec v) { vstore(p, v); }
inline void store_factors(uint16_t* p, Vec v) { vstore_bf16(p, v); }

// exp(scores * unit - top), as exact as F.
template <class F> inline Vec weights_of(Vec scores, float unit, float top) {
#ifdef OCTAVO_POW2_NEAR
    if constexpr (!__is_same(F, float)) {
        constexpr float kLog2e = 1.44269504f;
        return vpow2_near<kExact<F>>(vfma(scores, vset(unit * kLog2e), vset(-top * kLog2e)));
    }
#endif
    return vexp(vfma(scores, vset(unit), vset(-top)));
}

// A score may be so much above what is subtracted from it: e^kSlack is no less exact than e^0, and almost no tile after the first
// of a partition rescales what was accumulated, or waits for the largest of its scores.
constexpr float kSlack = 8.0f;

// Makes one head's scores in [begin, end), whole numbers of `unit` and of keys' scales if they are exact, weights, of values without
// their scales, and rescales what was accumulated before. kWhole: these are all of the tile. Exact weights are whole numbers of
// `scale`, 0 elsewhere in the tile.
template <class F, bool kWhole, class T>
inline void softmax_row(const HeadStates& state, const Tile<T>& tile, float* scores, float unit, [[maybe_unused]] float* scale,
                        int64_t head, int64_t width, int begin, int end) {
    const Vec minus_inf = vset(-__builtin_inff());
    const auto seen = [&](int i, Vec v) { return kWhole ? v : vkeep(v, begin - i, end - i, minus_inf); };
    const int first = kWhole ? 0 : begin / W * W, last = kWhole ? kTokenTile : end;
    Vec best = minus_inf;
    for (int i = first; i < last; i += W) {
        Vec score = vload(scores + i);
        if constexpr (kExact<F>) vstore(scores + i, score = vmul(score, vload(tile.key_scales[i / kTokenGroup] + i % kTokenGroup)));
        best = vmax(best, seen(i, score));
    }
    const float old_max = state.max[head];
    float new_max = old_max;
    if (vany_above(vmul(best, vset(unit)), old_max + kSlack)) new_max = vmax_of(best) * unit;
    Vec sum = vzero(), most = vzero();
    for (int i = first; i < last; i += W) {
        Vec weight = weights_of<F>(vload(scores + i), unit, new_max);
        if (!kWhole) weight = vkeep(weight, begin - i, end - i, vzero());
        sum = vadd(sum, weight);
        if constexpr (kExact<F>) {
            Vec factor = vmul(weight, vload(tile.value_scales[i / kTokenGroup] + i % kTokenGroup));
            if (!kWhole) factor = vkeep(factor, begin - i, end - i, vzero());
            most = vmax_not_negative(most, factor);
            vstore(scores + i, factor);
        } else {
            store_factors(reinterpret_cast<F*>(scores) + i, weight);
        }
    }
    if constexpr (kExact<F>) {
        const float largest = vmax_of_not_negative(most);
        const Vec times = vset(whole_numbers_of(largest));
        *scale = scale_of(largest);
        int16_t* weights = reinterpret_cast<int16_t*>(scores); // overtakes nothing that is still to be read
        for (int i = 0; i < kTokenTile; i += W) {
            vstore_int16(weights + i, i < first || i >= last ? vzero() : vmul(vload(scores + i), times));
        }
    }
    float* sums = state.sums + head * W;
    state.max[head] = new_max;
    // What there was keeps its scale, or is nothing yet: sums of 0, or of NaN, which no score is above.
    if (new_max == old_max || old_max == -__builtin_inff()) return vstore(sums, vadd(vload(sums), sum));
    const Vec factor = vset(exp_of(old_max - new_max));
    vstore(sums, vfma(vload(sums), factor, sum));
    float* acc = state.acc + head * width;
    for (int64_t i = 0; i < width; i += W) vstore(acc + i, vmul(vload(acc + i), factor));
}

struct Span {
    int begin, end;
};

// What the unit's row sees of the tile, relative to its start.
inline Span seen(const AttentionArgs& a, int64_t first_end, int64_t row, int64_t tile) {
    const int64_t end = first_end + row, begin = a.window > 0 ? max64(0, end - a.window) : 0;
    return {static_cast<int>(min64(max64(begin - tile, 0), kTokenTile)),
            static_cast<int>(min64(max64(end - tile, 0), kTokenTile))};
}

template <class T, class F, class A>
inline void add_rows(const AttentionScratch<F, A>& s, const HeadStates& state, const Tile<T>& tile, int64_t head, int64_t count,
                     int64_t begin, int64_t end) {
    if (begin >= end) return;
    const F* weights = reinterpret_cast<const F*>(s.scores) + head * kWeightStride<F>;
    const float* scales = s.scales + head;
    float* out = state.acc + head * s.width;
    int64_t c = 0;
    for (; c + kAttentionVecs * W <= s.width; c += kAttentionVecs * W) {
        const Columns at{s.width, c, tile.group};
        over_panels<ValuePanel, T, kAttentionVecs>(count, weights, scales, tile.values, at, begin, end, out + c, s.width, s.ahead);
    }
    for (; c < s.width; c += W) {
        const Columns at{s.width, c, tile.group};
        over_panels<ValuePanel, T, 1>(count, weights, scales, tile.values, at, begin, end, out + c, s.width, s.ahead);
    }
}

// Adds weights times values: positions that all rows [row0, row1) see at once, the others row by row, ascending in either case.
// Of several rows each sees both positions of a pair or adds it by itself, so that pairs are the same whatever the others see.
// Exact weights take all positions that some row sees at once.
template <class T, class F, class A>
inline void add_values(const AttentionArgs& a, const AttentionScratch<F, A>& s, const HeadStates& state, const Tile<T>& tile,
                       int64_t first_end, int64_t row0, int64_t row1, int64_t start) {
    const int64_t group = a.num_heads / a.num_kv_heads;
    if constexpr (kExact<F>) {
        const int64_t begin = seen(a, first_end, row0, start).begin, end = seen(a, first_end, row1 - 1, start).end;
        return add_rows(s, state, tile, row0 * group, (row1 - row0) * group, begin / 2 * 2, round_up(end, 2));
    }
    int64_t low = seen(a, first_end, row1 - 1, start).begin, high = seen(a, first_end, row0, start).end;
    if (row1 - row0 > 1) low = round_up(low, 2), high -= high % 2;
    high = max64(low, high);
    for (int64_t r = row0; r < row1; ++r) {
        const Span span = seen(a, first_end, r, start);
        add_rows(s, state, tile, r * group, group, span.begin, min64(low, span.end));
    }
    add_rows(s, state, tile, row0 * group, (row1 - row0) * group, low, high);
    for (int64_t r = row0; r < row1; ++r) {
        const Span span = seen(a, first_end, r, start);
        add_rows(s, state, tile, r * group, group, max64(high, span.begin), span.end);
    }
}

// Products by vectors.
template <class F> struct InVectors {
    using Factor = F;
    static constexpr int64_t kDepth = 16; // queries are padded to a multiple of it

    template <class T, class A> void score(const AttentionArgs& a, const AttentionScratch<F, A>& s, const Tile<T>& tile) {
        score_tile(a, s, tile);
    }

    template <class T, class A>
    void add(const AttentionArgs& a, const AttentionScratch<F, A>& s, const HeadStates& state, const Tile<T>& tile, int64_t first_end,
             int64_t row0, int64_t row1, int64_t start) {
        add_values(a, s, state, tile, first_end, row0, row1, start);
    }
};

// x times `scale` as whole numbers of what is returned, NaN where x is not finite; zeros from `dim` to `depth`.
inline float load_whole_numbers(const float* x, int64_t dim, int64_t depth, Vec scale, int16_t* out) {
    const auto at = [&](int64_t i) { return vmul(vload_part(x + i, min64(W, max64(dim - i, 0))), scale); };
    float largest;
    const bool finite = find_largest(depth, at, largest);
    const Vec times = vset(finite ? whole_numbers_of(largest) : 0.0f);
    for (int64_t i = 0; i < depth; i += W) vstore_int16(out + i, finite ? vmul(at(i), times) : vzero());
    return finite ? scale_of(largest) : __builtin_nanf("");
}

template <class F, class A>
inline void load_queries(const AttentionArgs& a, const AttentionUnit& u, const AttentionScratch<F, A>& s) {
    const int64_t group = a.num_heads / a.num_kv_heads;
    const Vec scale = vset(a.scale);
    for (int64_t r = u.row0; r < u.row1; ++r) {
        const float* src = a.qkv + r * a.stride + u.kv_head * group * a.head_dim;
        for (int64_t g = 0; g < group; ++g, src += a.head_dim) {
            const int64_t head = (r - u.row0) * group + g;
            F* dst = s.q + head * s.depth;
            if constexpr (kExact<F>) {
                s.q_scales[head] = load_whole_numbers(src, a.head_dim, s.depth, scale, dst);
            } else {
                for (int64_t i = 0; i < s.depth; i += W) {
                    store_factors(dst + i, vmul(vload_part(src + i, min64(W, max64(a.head_dim - i, 0))), scale));
                }
            }
        }
    }
}

inline void write_output(const AttentionArgs& a, const AttentionUnit& u, const HeadStates& state, int64_t width) {
    const int64_t group = a.num_heads / a.num_kv_heads;
    for (int64_t r = u.row0; r < u.row1; ++r) {
        for (int64_t g = 0; g < group; ++g) {
            const int64_t head = (r - u.row0) * group + g;
            const int64_t at = ((u.out_row + r - u.row0) * a.num_heads + u.kv_head * group + g) * a.head_dim;
            const Vec scale = vset(1.0f / vsum(vload(state.sums + head * W)));
            for (int64_t i = 0; i < a.head_dim; i += W) { // a sum's -0 is 0: it is where positions follow that a row sees nothing of
                const Vec value = vfma(vload(state.acc + head * width + i), scale, vzero());
                vstore_as(a.out, at + i, value, min64(W, a.head_dim - i), a.out_bf16);
            }
        }
    }
}

// The rows [row0, row1) that see something of the tile do all of one tile's work.
template <class T, class Products, class A, class F = typename Products::Factor>
bool attend_tile(const AttentionArgs& a, const AttentionUnit& u, Products& products, const AttentionScratch<F, A>& s,
                 const HeadStates& state, int64_t first_end, int64_t start, Tile<T>& tile) {
    const int64_t group = a.num_heads / a.num_kv_heads, rows = u.row1 - u.row0;
    int64_t row0 = 0, row1 = rows;
    while (row0 < rows && seen(a, first_end, row0, start).end == 0) ++row0;
    while (row1 > row0 && seen(a, first_end, row1 - 1, start).begin == kTokenTile) --row1;
    if (row0 == row1) return true;
    const int64_t begin = start + seen(a, first_end, row0, start).begin, end = start + seen(a, first_end, row1 - 1, start).end;
    if (!settle_tile(a, u, s.gathered, start, begin, end, tile)) return false;
    products.score(a, s, tile);
    for (int64_t r = row0; r < row1; ++r) {
        const Span span = seen(a, first_end, r, start);
        for (int64_t h = r * group; h < (r + 1) * group; ++h) {
            for (int i = 0; i < A::kOfSoftmax; i += 4) fetch<4>(*s.ahead, s.ahead->at);
            float* scores = s.scores + h * kTokenTile;
            const float unit = kExact<F> ? s.q_scales[h] : 1.0f;
            float* scale = s.scales + h;
            if (span.begin == 0 && span.end == kTokenTile) softmax_row<F, true>(state, tile, scores, unit, scale, h, s.width, 0, kTokenTile);
            else softmax_row<F, false>(state, tile, scores, unit, scale, h, s.width, span.begin, span.end);
        }
    }
    products.add(a, s, state, tile, first_end, row0, row1, start);
    fetch_rest(*s.ahead);
    return true;
}

// `next`: the unit that follows on this thread, or null.
template <class T, class Products, class A, class F = typename Products::Factor>
bool attend(const AttentionArgs& a, const AttentionUnit& u, const AttentionUnit* next, Products& products,
            const AttentionScratch<F, A>& s, Tiles<T>& tiles) {
    const Reach reach = reach_of(a, u);
    const bool writes = a.query_start[u.seq + 1] - a.query_start[u.seq] == 1;
    clear(s.total, s.heads, s.width);
    bool first = true;
    for (int64_t tile = reach.start; tile < reach.stop; first = false) {
        const HeadStates& state = first ? s.total : s.part;
        if (!first) clear(state, s.heads, s.width);
        const int64_t end = min64(reach.stop, (tile / kPartition + 1) * kPartition);
        for (; tile < end; tile += kTokenTile) {
            // Late: by now the block is here.
            if (writes && tile + kTokenTile >= reach.last_end) write_head<T>(a, u.row0, u.kv_head);
            if (tile + kTokenTile < reach.stop) aim(a, u, tile + kTokenTile, reach.stop, *s.ahead, tiles.next());
            else aim_first(a, next, *s.ahead, tiles.next());
            if (!attend_tile(a, u, products, s, state, reach.first_end, tile, tiles.now())) return false;
            tiles.step();
        }
        if (!first) merge(s.total, state, s.heads, s.width);
    }
    return true;
}

template <class T, class Products = InVectors<float>, class A = Ahead>
bool attend_all(const AttentionArgs& a, const AttentionUnit* units, int64_t count, float* scratch) {
    Products products;
    A ahead;
    Tiles<T> tiles;
    bool valid = true;
    aim_first(a, units, ahead, tiles.now());
    fetch_rest(ahead);
    for (int64_t i = 0; i < count; ++i) {
        const AttentionUnit& u = units[i];
        const auto s = lay_out<typename Products::Factor>(a, u, round_up(a.head_dim, Products::kDepth), scratch, ahead);
        load_queries(a, u, s);
        if (!attend(a, u, i + 1 < count ? &units[i + 1] : nullptr, products, s, tiles)) valid = tiles.now().found = false;
        else if (!u.state) write_output(a, u, s.total, s.width);
    }
    return valid;
}

// Keys and values in bf16. Zen 5's last level gives lines to the first level faster than to the second; Intel's processors lose
// requests for the second one that come at once.
template <class Products> bool attend_bf16(const AttentionArgs& a, const AttentionUnit* units, int64_t count, float* scratch) {
#ifdef OCTAVO_DOT_BF16
    using Usual = InVectors<uint16_t>;
    constexpr Tuning kNear = Tuning::zen5;
#else
    using Usual = InVectors<float>;
    constexpr Tuning kNear = Tuning::common;
#endif
    if constexpr (W == 16 && __is_same(Products, Usual)) {
        const bool near = a.tuning == kNear && count > 0 && units->row1 - units->row0 == 1;
        if (near) return attend_all<uint16_t, Products, NearAhead>(a, units, count, scratch);
    }
    return attend_all<uint16_t, Products>(a, units, count, scratch);
}

bool attention_int8(const AttentionArgs& a, const AttentionUnit* units, int64_t count, float* scratch) {
    return attend_all<int8_t, InVectors<int16_t>>(a, units, count, scratch);
}

[[maybe_unused]] bool attention(const AttentionArgs& a, const AttentionUnit* units, int64_t count, float* scratch) {
#ifdef OCTAVO_DOT_BF16
    if (a.kv_type == KVType::bf16 && a.out_bf16) return attend_bf16<InVectors<uint16_t>>(a, units, count, scratch);
#endif
    switch (a.kv_type) {
    case KVType::fp32: return attend_all<float>(a, units, count, scratch);
    case KVType::bf16: return attend_bf16<InVectors<float>>(a, units, count, scratch);
    case KVType::int8: return attention_int8(a, units, count, scratch);
    }
    return false;
}

[[maybe_unused]] void attention_merge(const AttentionArgs& a, const AttentionUnit& u, int64_t count) {
    const int64_t rows = u.row1 - u.row0, heads = rows * (a.num_heads / a.num_kv_heads), width = padded_dim(a.head_dim);
    const HeadStates total = states_at(u.state, heads, width);
    for (int64_t i = 1; i < count; ++i) {
        merge(total, states_at(u.state + i * attention_state(a, rows), heads, width), heads, width);
    }
    write_output(a, u, total, width);
}
