// Products of compact blocks of bf16 weights; see compact.hpp. Included inside the instruction set's own namespace, after
// kernels_compact_stream.hpp. The results are those of plain blocks, bit for bit: the same numbers meet in the same order.

constexpr int64_t kNearRows = 32; // the inputs of more leave the first-level cache no room for what tiles fetch for one another

// What a tile that is one of several asks for, into the first-level cache or the second.
template <bool kNear> struct CompactShare : PanelAhead {
    CompactShare(const uint8_t*, const LinearArgs&, const char* at, const char* other, int64_t step) : PanelAhead{at, other, step} {}

    inline __attribute__((always_inline)) void fetch_both() {
        __builtin_prefetch(at, 0, kNear ? 3 : 2);
        __builtin_prefetch(other, 0, kNear ? 3 : 2);
        at += step;
        other += step;
    }
};

// acc += the pair of inputs at k of each row times the pairs of all columns.
template <int R>
inline __attribute__((always_inline)) void multiply_pair(Vec (&acc)[R][2], const RowBases<R, Input>& rows, int64_t k, const Vec (&weights)[2]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const int32_t pair = pair_at(rows.row(r) + k);
        acc[r][0] = vdot(acc[r][0], pair, weights[0]);
        acc[r][1] = vdot(acc[r][1], pair, weights[1]);
    }
}

// Those of the next group, in registers: what is rare must not cost the sums theirs.
inline __attribute__((always_inline)) void set_exceptions(Exceptions& exceptions, Vec (&to)[2][2]) {
    exceptions.of_group([&](int64_t place, int upper) __attribute__((always_inline)) {
        for (int half = 0; half < 2; ++half) set_upper(to[half], place - half * 64, upper);
    });
}

inline __attribute__((always_inline)) void unpack_group(const uint8_t* from, GroupTable table, Exceptions& exceptions, Vec (&to)[2][2]) {
    unpack_half(from, 0, table, to[0]);
    unpack_half(from, 1, table, to[1]);
    if (__builtin_expect(from == exceptions.group, 0)) set_exceptions(exceptions, to);
}

// The last inputs, fewer than a group has: nothing is read beyond them.
template <int R>
__attribute__((noinline)) void multiply_rest(Vec (&acc)[R][2], RowBases<R, Input> rows, int64_t rest, const Vec (&weights)[2][2]) {
    Input inputs[R][4] = {};
    for (int r = 0; r < R; ++r) __builtin_memcpy(inputs[r], rows.row(r), rest * sizeof(Input));
    const RowBases<R, Input> own(inputs[0], 4);
    for (int half = 0; half * 2 < rest; ++half) multiply_pair(acc, own, half * 2, weights[half]);
}

// R rows of one block. Ahead: what it asks for, of which at, other and step tell.
template <int R, class Ahead>
__attribute__((noinline)) void tile_compact(const LinearArgs& a, int64_t row, int64_t block, const char* at, const char* other, int64_t step) {
    static_assert(W * 2 == kColumnBlock && kLinearVecs == 2);
    const uint8_t* from = static_cast<const uint8_t*>(a.weight) + block * compact_block_bytes(a.k);
    Exceptions exceptions(a.compact->exceptions + a.compact->first[block], from);
    const GroupTable table = group_table(a.compact->highs + block * 16);
    RowBases<R, Input> x(static_cast<const Input*>(a.x) + row * a.x_stride, a.x_stride);
    Vec acc[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = vzero();
    Ahead ahead(from, a, at, other, step);
    for (const uint8_t* end = from + a.k / 4 * kGroupBytes; from != end; from += kGroupBytes) {
        ahead.fetch_both();
        Vec weights[2][2];
        unpack_group(from, table, exceptions, weights);
        x.hide_strides();
        multiply_pair(acc, x, 0, weights[0]);
        multiply_pair(acc, x, 2, weights[1]);
        x.advance(4);
    }
    if (a.k % 4) {
        Vec copy[R][2], weights[2][2];
        unpack_group(from, table, exceptions, weights);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) copy[r][0] = acc[r][0], copy[r][1] = acc[r][1];
        multiply_rest(copy, x, a.k % 4, weights);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r][0] = copy[r][0], acc[r][1] = copy[r][1];
    }
    const int64_t columns[2] = {block * kColumnBlock, block * kColumnBlock + W};
    store_tile(a, row, columns, acc);
}

template <Tuning kTuning, int R> constexpr void fill_compact_tiles(TileKernels& tiles) {
    if constexpr (R > 0) {
        tiles.one[R] = tiles.ahead[R] = tile_compact<R, CompactStream<tuning_of(kTuning, R), on_fronts(kTuning, R)>>;
        if constexpr (fetches_ahead<R>()) tiles.ahead[R] = tile_compact<R, CompactShare<kTuning == Tuning::zen5>>;
        fill_compact_tiles<kTuning, R - 1>(tiles);
    }
}

template <Tuning kTuning> constexpr TileKernels compact_tiles() {
    TileKernels tiles{};
    fill_compact_tiles<kTuning, kLinearRows>(tiles);
    return tiles;
}

constexpr TileKernels kCompactTiles[] = {compact_tiles<Tuning::common>(), compact_tiles<Tuning::zen5>(),
                                         compact_tiles<Tuning::zen4>()};

void linear_compact(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    const Tuning tuning = row1 - row0 > kNearRows ? Tuning::common : a.tuning;
    multiply_range(kCompactTiles[static_cast<int>(tuning)], a, row0, row1, block0, block1, compact_block_bytes(a.k));
}
