// Products of compact blocks of bf16 weights; see compact.hpp. Included inside the instruction set's own namespace, where dot
// products take pairs of bf16. The results are those of plain blocks, bit for bit: the same numbers meet in the same order.

// In groups, for the first and the second level of cache, and for the second where hardware reads ahead by itself.
constexpr int64_t kFirstLevelAhead = 8, kSecondLevelAhead = 48, kBesideHardwareAhead = 5;

// Asks for groups further on, one for each level of cache, or, where hardware reads ahead by itself, not far: that would get in its
// way.
inline __attribute__((always_inline)) void fetch_compact(const uint8_t* from, bool reads_ahead) {
    const int64_t ahead = (reads_ahead ? kBesideHardwareAhead : kSecondLevelAhead) * kGroupBytes;
    for (int64_t line = 0; line < kGroupBytes; line += 64) {
        if (!reads_ahead) __builtin_prefetch(from + kFirstLevelAhead * kGroupBytes + line);
        __builtin_prefetch(from + ahead + line, 0, 2);
    }
}

// The elements of group `number`, whose exceptions are those up to its end.
inline void unpack_group(const uint8_t* from, GroupTable table, int64_t number, const uint32_t*& exception, uint16_t* to) {
    for (int half = 0; half < 2; ++half) {
        Vec parts[2];
        unpack_half(from, half, table, parts);
        for (int i = 0; i < 2; ++i) vstore(reinterpret_cast<float*>(to + half * 64 + i * W * 2), parts[i]);
    }
    for (; place_of(exception) < (number + 1) * kGroupElements; ++exception) {
        set_upper(to[place_of(exception) - number * kGroupElements], exception);
    }
}

// R rows of one block.
template <int R, bool kAhead>
__attribute__((noinline)) void tile_compact(const LinearArgs& a, int64_t row, int64_t block, PanelAhead ahead) {
    static_assert(W * 2 == kColumnBlock && kLinearVecs == 2);
    const uint8_t* from = static_cast<const uint8_t*>(a.weight) + block * compact_block_bytes(a.k);
    const uint32_t* exception = a.compact->exceptions + a.compact->first[block];
    const GroupTable table = group_table(a.compact->highs + block * 16);
    const Input* x[R];
    Vec acc[R][2];
    for (int r = 0; r < R; ++r) {
        x[r] = static_cast<const Input*>(a.x) + (row + r) * a.x_stride;
        for (int v = 0; v < 2; ++v) acc[r][v] = vzero();
    }
    const auto multiply = [&](const Vec (&weights)[2], const Input* const (&rows)[R], int64_t k) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const int32_t pair = pair_at(rows[r] + k);
            acc[r][0] = vdot(acc[r][0], pair, weights[0]);
            acc[r][1] = vdot(acc[r][1], pair, weights[1]);
        }
    };
    const int64_t whole = a.k / 4;
    const bool reads_ahead = R <= 2 && a.reads_ahead;
    for (int64_t number = 0;; ++number, from += kGroupBytes) {
        // What is rare stays out of this loop, so that sums stay in registers.
        for (const int64_t end = min64(whole, place_of(exception) / kGroupElements); number < end; ++number, from += kGroupBytes) {
            if constexpr (!kAhead) fetch_compact(from, reads_ahead);
            Vec weights[2][2];
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) unpack_half(from, half, table, weights[half]);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                if constexpr (kAhead) ahead.fetch();
                multiply(weights[half], x, number * 4 + half * 2);
            }
        }
        if (number * 4 >= a.k) break;
        // A group with exceptions, or the last one, where inputs may be missing: nothing is read beyond them.
        alignas(64) uint16_t plain[kGroupElements];
        unpack_group(from, table, number, exception, plain);
        const int64_t rest = min64(4, a.k - number * 4);
        Input inputs[R][4] = {};
        const Input* rows[R];
        for (int r = 0; r < R; ++r) {
            __builtin_memcpy(inputs[r], x[r] + number * 4, rest * sizeof(Input));
            rows[r] = inputs[r];
        }
        for (int half = 0; half * 2 < rest; ++half) {
            const float* own = reinterpret_cast<const float*>(plain + half * 64);
            const Vec weights[2] = {vload(own), vload(own + W)};
            multiply(weights, rows, half * 2);
        }
    }
    const int64_t columns[2] = {block * kColumnBlock, block * kColumnBlock + W};
    store_tile(a, row, columns, acc);
}

template <int R> constexpr void fill_compact_tiles(TileKernels& tiles) {
    if constexpr (R > 0) {
        tiles.one[R] = tile_compact<R, false>;
        tiles.ahead[R] = tile_compact<R, fetches_ahead<R>()>;
        fill_compact_tiles<R - 1>(tiles);
    }
}

struct CompactTiles {
    TileKernels tiles{};
    constexpr CompactTiles() { fill_compact_tiles<kLinearRows>(tiles); }
};

constexpr CompactTiles kCompactTiles;

void linear_compact(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    multiply_range(kCompactTiles.tiles, a, row0, row1, block0, block1, compact_block_bytes(a.k));
}
