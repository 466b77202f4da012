// Products with integer weights; see integer.hpp for how they and activations lie in memory. Included inside the instruction set's
// own namespace, after kernels_dots.hpp and kernels_outputs.hpp.

// A tile's pass over the groups [group0, group1) of a block. What the groups before them gave is in `sums`, [row][output of the
// block], and so is what these add; if they are the last, the result goes out. At each group the pass prefetches
// `fetch_bytes` from `fetch` on, where `far` says so only into the second-level cache, or where `fronts` says so by them, and
// `later_bytes` of what comes later from `later` on.
struct TilePass {
    int64_t row, block, group0, group1;
    float* sums;
    const char* lines; // of group0, if they are unpacked
    const char *fetch, *later;
    const char *fetch_end, *fetch_after; // there it goes on elsewhere; may be null
    int64_t fetch_bytes, later_bytes;
    bool far, fronts;
};

// Times that a tile of so many rows walks its groups: as often as registers are too few for a block.
constexpr int passes_of(int64_t rows) { return kIntegerColumns / (vecs_of(rows) * W); }

constexpr int kLeastOnFronts = 4; // rows; fewer are read as fast as memory is without

constexpr int kRowsInOrder = W == 16 ? 6 : 1; // at most; a line of weights is one vector, or two

// How a tile meets groups: packed ones, unpacked ones, spans, these in the order of memory, or pairs.
enum class Form { packed, unpacked, spans, spans_in_order, pairs };

template <int R, int kBits, int kLevels, Form kForm> __attribute__((noinline)) void integer_tile(const IntegerLinearArgs& a, const TilePass& pass) {
    constexpr bool kUnpacked = kForm == Form::unpacked, kInOrder = kForm == Form::spans_in_order, kSpans = kForm == Form::spans || kInOrder;
    constexpr int kTogether = kForm == Form::pairs ? 2 : 1; // groups
    constexpr int V = vecs_of(R), kPasses = passes_of(R), kStep = R * record_bytes(kBits, kLevels);
    constexpr int64_t kBytes = group_bytes(kBits);
    const bool first = pass.group0 == 0, last = pass.group1 == a.groups, on_fronts = R >= kLeastOnFronts && kForm == Form::packed && pass.fronts;
    const int64_t fetch_bytes = (pass.fetch_bytes + kPasses - 1) / kPasses, later_bytes = (pass.later_bytes + kPasses - 1) / kPasses;
    const char *fetch = pass.fetch, *fetch_end = fetch, *later = pass.later, *later_end = later;
    for (int column = 0; column < kIntegerColumns; column += V * W) {
        const char* x = a.x + pass.row * a.groups * (kStep / R) + pass.group0 * kStep;
        const char* w = a.weight + pass.block * a.block_bytes() + pass.group0 * kBytes;
        const int64_t at = place_of_column(kBitsRead<kBits, kUnpacked>, column);
        const int64_t scales = kUnpacked ? kGroupLines + column * 4 : kForm == Form::pairs ? scales_of_pair(column) : scale_of_column(kBits, column);
        const char* lines = pass.lines;
        Fronts fronts;
        if (on_fronts) fronts = Fronts(w, a.reading);
        Sums<R, V> acc;
        Dots dots[R][V];
        if constexpr (kSpans) clear_dots(dots);
        acc.begin(pass.sums + column, first);
        if (kForm == Form::pairs && last) fetch_end += kIntegerColumns * 4; // what is behind the groups of a block
        const auto fetch_group = [&]() __attribute__((always_inline)) {
            if (on_fronts) {
                fronts.fetch<kBytes / kFetched>();
            } else {
                if (fetch == pass.fetch_end) fetch = fetch_end = pass.fetch_after;
                fetch_end += fetch_bytes;
                if (pass.far) {
                    for (; fetch < fetch_end; fetch += kLine) __builtin_prefetch(fetch, 0, 2);
                } else {
                    for (; fetch < fetch_end; fetch += kLine) __builtin_prefetch(fetch);
                }
            }
            for (later_end += later_bytes; later < later_end; later += kLine) __builtin_prefetch(later, 0, 2);
        };
        for (int64_t g = pass.group0; g < pass.group1; g += kTogether, w += kTogether * kBytes, x += kTogether * kStep) {
            fetch_group();
            const char* group = kUnpacked ? lines : w;
            if constexpr (kSpans) {
                dot_span<kStep / R, kInOrder>(dots, x, w + at);
                if (ends_span(a.ends, g)) {
                    accumulate_span(acc, dots, x, w + scales);
                    clear_dots(dots);
                }
            } else if constexpr (kForm == Form::pairs) {
                accumulate_pair<R, V>(acc, x, w + at, w + scales, fetch_group);
            } else {
                accumulate_group<R, V, kBits, kLevels, kUnpacked>(acc, x, group + at, group + scales);
            }
            if (kUnpacked) lines += kGroupUnpacked;
        }
        if (last) {
            if constexpr (kForm == Form::pairs) {
                scale_pairs<R, V>(acc, w + column * 4, a.x + records_bytes(a.rows, a.groups, kBits, kLevels, false) + pass.row * 4);
            }
            int64_t columns[V];
            for (int v = 0; v < V; ++v) columns[v] = pass.block * kIntegerColumns + column + v * W;
            acc.store(a, pass.row, columns);
        } else {
            acc.keep();
        }
    }
}

// Rows, at most, of a tile that is alone. With one level of 8 bits nothing is unpacked, so that two tiles may cost less than sums in
// memory.
constexpr int64_t rows_alone(int bits, int levels) { return bits == 8 && levels == 1 ? kRowsAloneEight : kRowsAlone; }

int64_t tiles_of(int64_t rows, int bits, int levels, bool spans) {
    return rows <= (spans ? kRowsAlone : rows_alone(bits, levels)) ? 1 : (rows + kIntegerRows - 1) / kIntegerRows;
}

typedef void (*IntegerTile)(const IntegerLinearArgs&, const TilePass&);

struct IntegerTiles {
    IntegerTile of[2][4][kRowsAlone + 1]{}; // [levels less one][index of the bits][rows]
    IntegerTile unpacked[2][2][kIntegerRows + 1]{}; // of 4 and 6 bits
    IntegerTile shared[kIntegerRows + 1]{}, alone[kRowsAlone + 1]{}; // of spans, beside other tiles and without
    IntegerTile pairs[kRowsAlone + 1]{};
    template <int kBits, int R> constexpr void fill() {
        if constexpr (R > 0) {
            if constexpr (R <= rows_alone(kBits, 1)) of[0][index_of_bits(kBits)][R] = integer_tile<R, kBits, 1, Form::packed>;
            of[1][index_of_bits(kBits)][R] = integer_tile<R, kBits, 2, Form::packed>;
            if constexpr (kBits == 4 && kGroupPairs) pairs[R] = integer_tile<R, 4, 1, Form::pairs>;
            if constexpr (kBits == 8) alone[R] = integer_tile<R, 8, 1, R <= kRowsInOrder ? Form::spans_in_order : Form::spans>;
            if constexpr (kBits == 8 && R <= kIntegerRows) shared[R] = integer_tile<R, 8, 1, Form::spans>;
            if constexpr ((kBits == 4 || kBits == 6) && R >= kIntegerRows / 2 && R <= kIntegerRows) { // of two tiles or more each has half of them at least
                unpacked[0][kBits == 6][R] = integer_tile<R, kBits, 1, Form::unpacked>;
                unpacked[1][kBits == 6][R] = integer_tile<R, kBits, 2, Form::unpacked>;
            }
            fill<kBits, R - 1>();
        }
    }
    constexpr IntegerTiles() {
        fill<4, kRowsAlone>();
        fill<5, kRowsAlone>();
        fill<6, kRowsAlone>();
        fill<8, kRowsAlone>();
    }
};

constexpr IntegerTiles kIntegerTiles;

// So many tiles meet weights of 6 bits unpacked, each counted for every level of activations, and of 4 bits where unpacking takes the
// units that products take. Others are unpacked sooner than their bytes are read.
constexpr int64_t kTilesToUnpack = 3, kChunkOfUnpacked = 25 << 10;

// What all tiles pass before any goes on, at most, in bytes of weights: it and the next one stay in the nearest cache. Many tiles
// pass a larger one, because going on to the next tile costs more than coming back to the weights.
constexpr int64_t kFewTiles = 8, kChunkOfFew = 12 << 10, kChunkOfMany = 24 << 10;
// Bytes, whole groups of them, ahead of a tile that is alone. Hardware keeps up with one row, or two that take more bytes for a product.
inline int64_t ahead_of(const IntegerLinearArgs& a) {
    const bool hardware = a.tuning == Tuning::zen4 && (a.rows == 1 || (a.rows == 2 && a.bits > 4));
    const int64_t bytes = hardware ? 1 << 10 : a.tuning == Tuning::zen5 ? 8 << 10 : 6 << 10;
    return round_up(bytes, (a.paired ? 2 : 1) * group_bytes(a.bits));
}
constexpr int64_t kTilesAtOnce = 32; // tiles, at most, that pass a chunk

// What of a piece is still to be fetched.
struct PieceLeft {
    const char *at = nullptr, *end = nullptr;
};

// Gives a pass over so many groups its share of the pieces: so many bytes for each group, as far as a piece lasts.
inline void fetch_later(Pieces* pieces, PieceLeft& left, int64_t groups, int64_t bytes, TilePass& pass) {
    pass.later_bytes = 0;
    if (pieces) ++pieces->passes;
    if (left.at == left.end) {
        const char* piece = bytes ? next_piece(pieces) : nullptr;
        if (!piece) return;
        left = {piece, piece + pieces->bytes};
    }
    pass.later = left.at;
    pass.later_bytes = bytes;
    left.at += min64(left.end - left.at, groups * bytes);
}

// Bytes of pieces for each group of a pass over so many: 4 KB in all.
inline int64_t later_a_group(int64_t groups) { return ((4 << 10) + groups - 1) / groups; }

// The same for a tile of vectors. Intel's first-level cache has few places for lines under way: more of them than this would keep a
// group's products waiting. Zen 4 takes them evenly until attention comes.
inline int64_t later_a_group(const IntegerLinearArgs& a, int64_t groups, int64_t tiles) {
    if (a.tuning == Tuning::zen4 && a.pieces) return (a.pieces->share + groups - 1) / groups;
    if (a.tuning != Tuning::common) return later_a_group(groups);
    return kLine * a.levels * (tiles == 1 ? a.rows / 3 : 2);
}

// While tiles pass a chunk of the weights, they fetch the next one, each its share, so that reading memory and computing overlap.
// A tile that is alone and walks its groups once reads them as they come, a stream that goes on where the next product begins.
void multiply_block(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block, PieceLeft& left) {
    alignas(64) float sums[kTilesAtOnce * kIntegerRows * kIntegerColumns];
    alignas(64) char lines[kChunkOfUnpacked];
    const EvenTiles rows(a.rows, a.tiles);
    const int64_t tiles = tile1 - tile0, row0 = rows.begin(tile0);
    const int64_t bytes = group_bytes(a.bits);
    const bool four = a.bits == 4 && !a.paired && a.tuning == Tuning::common && tiles >= kTilesToUnpack;
    const bool unpacked = four || (a.bits == 6 && tiles * a.levels >= kTilesToUnpack);
    const IntegerTile* kernels = unpacked ? kIntegerTiles.unpacked[a.levels - 1][a.bits == 6] : kIntegerTiles.of[a.levels - 1][index_of_bits(a.bits)];
    if (a.ends) kernels = tiles == 1 ? kIntegerTiles.alone : kIntegerTiles.shared;
    if (a.paired) kernels = kIntegerTiles.pairs;
    const int64_t largest = unpacked ? kChunkOfUnpacked / kGroupUnpacked : (tiles > kFewTiles ? kChunkOfMany : kChunkOfFew) / bytes;
    const bool streams = tiles == 1 && passes_of(a.rows) == 1;
    // The second level is as good for spans, whose dots are all that there is to do; what would be done between chunks is not little.
    const int64_t chunks = streams || a.ends ? 1 : (a.groups + largest - 1) / largest;
    const char *start = a.weight + block * a.block_bytes(), *end = a.reading.end, *after = a.reading.after;
    const int64_t together = a.paired ? 2 : 1; // groups that nothing comes between
    TilePass pass{};
    pass.block = block;
    pass.fetch_bytes = (bytes + tiles - 1) / tiles;
    pass.far = streams ? a.tuning != Tuning::zen5 : a.ends != 0;
    pass.fronts = streams && a.tuning == Tuning::common;
    pass.lines = lines;
    pass.fetch_after = after;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        pass.group0 = a.groups / together * chunk / chunks * together;
        pass.group1 = a.groups / together * (chunk + 1) / chunks * together;
        pass.fetch = streams ? start + ahead_of(a) : start + pass.group1 * bytes;
        if (after && pass.fetch >= end) pass.fetch += after - end;
        else if (after && streams) pass.fetch_end = end;
        const int64_t groups = pass.group1 - pass.group0, later_bytes = later_a_group(a, groups, tiles);
        const char* packed = start + pass.group0 * bytes;
        const auto unpack = a.bits == 6 ? unpack_group<6> : unpack_group<4>;
        for (int64_t g = 0; unpacked && g < groups; ++g) unpack(packed + g * bytes, lines + g * kGroupUnpacked);
        for (int64_t tile = tile0; tile < tile1; ++tile, pass.fetch += groups * pass.fetch_bytes) {
            pass.row = rows.begin(tile);
            pass.sums = sums + (pass.row - row0) * kIntegerColumns;
            fetch_later(a.pieces, left, groups, later_bytes, pass);
            kernels[rows.rows(tile)](a, pass);
        }
    }
}

void linear_integer(const IntegerLinearArgs& a, int64_t tile0, int64_t tile1, int64_t block0, int64_t block1) {
    PieceLeft left;
    for (int64_t block = block0; block < block1; ++block) {
        for (int64_t tile = tile0; tile < tile1; tile += kTilesAtOnce) {
            multiply_block(a, tile, min64(tile1, tile + kTilesAtOnce), block, left);
        }
    }
}

void embedding_integer(const IntegerEmbeddingArgs& a, int64_t row0, int64_t row1) {
    const int64_t block_bytes = a.groups * group_bytes(a.bits);
    for (int64_t r = row0; r < row1; ++r) {
        const int64_t n = a.ids[r];
        const char* block = a.table + n / kIntegerColumns * block_bytes;
        read_grouped_column(block, n % kIntegerColumns, a.groups, a.bits, a.out + r * a.groups * kGroup);
    }
}
