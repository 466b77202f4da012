// Products of compact blocks of bf16 weights in whole numbers of 16 bits, as block floating point: numbers that lie together share
// an exponent. Where no instruction multiplies bf16, one that multiplies pairs of such numbers does two multiplications a lane, and
// nothing becomes a float but sums. Included inside the instruction set's own namespace, after the compact blocks' whole numbers.
//
// A group is kFixedInputs inputs: of a block's 32 columns for weights, of a row for x. Weights have 13 bits and a sign, x has 12, so
// that 32 bits hold a group's sum. It is exact, and floats take sums group after group: the same bits for any tile. Columns of a
// block are multiplied by powers of two beforehand, which makes them nearly equally large.
//
// A row of x holds its numbers, then the scales of its groups; see fixed_row_elements.

constexpr int64_t kFixedSumRows = 192; // of a block at once, whose sums are in the first-level cache
constexpr int kFixedParts = kColumnBlock / (2 * W); // of a block's columns, that registers hold at once: W from 0 on, and W from 16 on
constexpr int kWeightBits = 13, kInputBits = 12;
static_assert((int64_t{1} << (kWeightBits + kInputBits)) * kFixedInputs <= int64_t{1} << 31); // none is quite so large
// A weight is its lower byte with a one before its mantissa, doubled where the last bit of its exponent, the upper one of that byte,
// is set; times 64; times a factor that its code stands for, a power of two with its sign, over 2^15. This is the power where the
// exponent is the group's largest, or one less.
constexpr int kMostFactor = 14;

// The float that is two to the power of exponent - 127.
inline float power_of_two(int exponent) {
    const uint32_t bits = static_cast<uint32_t>(exponent) << 23;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// Of the elements of four inputs, where a part's columns of one of its vectors begin.
constexpr int64_t place_of_part(int half, int part, int v) { return half * 64 + (v * 16 + part * W) * 2; }

// The weights of a block, group after group.
class FixedGroups {
public:
    FixedGroups(const LinearArgs& a, int64_t block)
        : at(static_cast<const uint8_t*>(a.weight) + block * compact_block_bytes(a.k)),
          exponents_(a.compact->exponents + block * fixed_groups(a.k)), codes_(fixed_codes(a.compact->highs + block * 16)),
          exceptions_(a.compact->exceptions + a.compact->first[block], at), first_(exceptions_) {}

    // The next group is the one from `at` on. Returns two to the power of what a unit of it is.
    float open() {
        begin_ = at;
        first_ = exceptions_;
        top_ = *exponents_++;
        factors = fixed_factors(codes_, top_ - kMostFactor);
        return power_of_two(top_ - (kWeightBits - 1));
    }
    // The same group again, from its beginning.
    void rewind() {
        at = begin_;
        exceptions_ = first_;
    }
    bool exceptional(const uint8_t* four) const { return four == exceptions_.group; }
    // Inputs of the group from those at `from` on, a multiple of four, as pairs of 32 columns, exceptions and all.
    __attribute__((noinline)) void take(const uint8_t* from, int64_t inputs, int16_t* to) {
        const FixedFactors own = factors;
        const uint8_t* exception = exceptions_.group;
        for (const uint8_t* end = from + inputs / 4 * kGroupBytes; from != end; from += kGroupBytes, to += kGroupElements) {
            for (int half = 0; half < 2; ++half) {
                for (int part = 0; part < kFixedParts; ++part) {
                    IntPairs pairs[2];
                    fix_half(from, half, part, own, pairs);
                    for (int v = 0; v < 2; ++v) istore(to + place_of_part(half, part, v), pairs[v]);
                }
            }
            if (__builtin_expect(from == exception, 0)) exception = take_exceptions(from, to);
        }
    }

    const uint8_t* at;
    FixedFactors factors;

private:
    // Those of four inputs; returns where the next ones are.
    __attribute__((noinline)) const uint8_t* take_exceptions(const uint8_t* from, int16_t* to) {
        exceptions_.of_group([&](int64_t place, int upper) {
            to[place] = fixed_number(upper, from[64 + place / 64 * 64 + compact_place(place % 64)]);
        });
        return exceptions_.group;
    }
    // As fix_half makes it.
    int16_t fixed_number(int upper, int lower) const {
        const int power = 2 * (upper & 127) - (top_ - kMostFactor);
        if ((upper & 127) == 0 || power < 0) return 0;
        const int factor = upper & 128 ? -(1 << power) : 1 << power;
        return static_cast<int16_t>(((lower + (lower < 128 ? 128 : lower)) * 64 * factor + 0x4000) >> 15);
    }

    const uint8_t *exponents_, *begin_ = nullptr;
    FixedCodes codes_;
    Exceptions exceptions_, first_; // the next ones, and those at the group's beginning
    int top_ = 0;
};

// In a row of x from behind the inputs [k, k + inputs) to their scale.
inline int64_t bytes_to_scale(int64_t padded, int64_t k, int64_t inputs) { return (padded - k - inputs) * 2 + k / kFixedInputs * 4; }

// Sums of a group that are known become floats; the rows' inputs come next, their scale so many bytes further.
template <int R>
inline __attribute__((always_inline)) void add_group(const Ints (&acc)[R][2], const RowBases<R, int16_t>& rows, int64_t scales, float unit,
                                                     float* sums) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        float scale;
        __builtin_memcpy(&scale, reinterpret_cast<const char*>(rows.row(r)) + scales, sizeof scale);
        const Vec times = vset(scale * unit);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
            float* to = sums + r * kColumnBlock + v * 16;
            vstore(to, vfma(ifloat(acc[r][v]), times, vload(to)));
        }
    }
}

template <int R>
inline __attribute__((always_inline)) void add_pair(Ints (&acc)[R][2], const RowBases<R, int16_t>& rows, int64_t k, IntPairs left,
                                                    IntPairs right) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const IntPairs pair = iset(pair_at(rows.row(r) + k));
        idot(acc[r][0], left, pair);
        idot(acc[r][1], right, pair);
    }
}

// Rows and the sums of a block; columns are scaled as they are written.
inline void store_block(const LinearArgs& a, int64_t block, int64_t row, int64_t rows, const float* sums) {
    const float* times = a.compact->scales + block * kColumnBlock;
    for (int64_t r = 0; r < rows; ++r, sums += kColumnBlock) {
        for (int64_t at = 0; at < kColumnBlock; at += 2 * W) {
            const int64_t columns[2] = {block * kColumnBlock + at, block * kColumnBlock + at + W};
            const Vec acc[1][2] = {{vmul(vload(sums + at), vload(times + at)), vmul(vload(sums + at + W), vload(times + at + W))}};
            store_tile(a, row + r, columns, acc);
        }
    }
}

// A tile that is alone makes numbers of weights in registers.
template <Tuning kTuning, int R>
__attribute__((noinline)) void fixed_alone(const LinearArgs& a, int64_t block, int64_t row, float* sums) {
    constexpr int kAtOnce = R == 1 ? kFixedParts : 1; // parts whose sums registers hold
    const int64_t padded = round_up(a.k, kDepthStep);
    for (int64_t i = 0; i < R * kColumnBlock; i += W) vstore(sums + i, vzero());
    FixedGroups weights(a, block);
    CompactStream<tuning_of(kTuning, R), on_fronts(kTuning, R)> stream(weights.at, a, nullptr, nullptr, 0);
    RowBases<R, int16_t> rows(static_cast<const int16_t*>(a.x) + row * a.x_stride, a.x_stride);
    for (int64_t k = 0; k < padded; k += kFixedInputs) {
        const int64_t inputs = min64(kFixedInputs, padded - k), scales = bytes_to_scale(padded, k, inputs);
        const float unit = weights.open();
#pragma GCC unroll 1
        for (int first = 0; first < kFixedParts; first += kAtOnce) {
            if (first > 0) weights.rewind(), rows.advance(-inputs);
            Ints acc[kAtOnce][R][2];
#pragma GCC unroll 2
            for (int p = 0; p < kAtOnce; ++p) {
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) acc[p][r][0] = acc[p][r][1] = izero();
            }
            const uint8_t* at = weights.at;
            for (const uint8_t* end = at + inputs / 4 * kGroupBytes; at != end; at += kGroupBytes) {
                if (kFixedParts == kAtOnce || first == 0) stream.fetch_both();
                rows.hide_strides();
                if (__builtin_expect(weights.exceptional(at), 0)) {
                    alignas(64) int16_t numbers[kGroupElements];
                    weights.take(at, 4, numbers);
#pragma GCC unroll 2
                    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
                        for (int p = 0; p < kAtOnce; ++p) {
                            const int16_t* own = numbers + place_of_part(half, first + p, 0);
                            add_pair(acc[p], rows, 2 * half, iload(own), iload(own + place_of_part(0, 0, 1)));
                        }
                    }
                } else {
#pragma GCC unroll 2
                    for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 2
                        for (int p = 0; p < kAtOnce; ++p) {
                            IntPairs pairs[2];
                            fix_half(at, half, first + p, weights.factors, pairs);
                            add_pair(acc[p], rows, 2 * half, pairs[0], pairs[1]);
                        }
                    }
                }
                rows.advance(4);
            }
            weights.at = at;
            rows.hide_strides();
#pragma GCC unroll 2
            for (int p = 0; p < kAtOnce; ++p) add_group(acc[p], rows, scales, unit, sums + (first + p) * W);
        }
    }
    store_block(a, block, row, R, sums);
}

// R rows, one of several tiles, and a group of weights that are numbers already.
template <int R>
__attribute__((noinline)) void fixed_tile(const int16_t* x, int64_t x_stride, int64_t scales, int64_t inputs, const int16_t* weights,
                                          float unit, float* sums, PanelAhead& ahead) {
    RowBases<R, int16_t> rows(x, x_stride);
    PanelAhead own = ahead;
#pragma GCC unroll 1
    for (int part = 0; part < kFixedParts; ++part) {
        if (part > 0) rows.advance(-inputs);
        Ints acc[R][2];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = izero();
        const int16_t* at = weights + place_of_part(0, part, 0);
        for (const int16_t* end = at + inputs * kColumnBlock; at != end; at += 4 * kColumnBlock) {
            rows.hide_strides();
            own.fetch_both();
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const int16_t* pairs = at + half * 2 * kColumnBlock;
                add_pair(acc, rows, 2 * half, iload(pairs), iload(pairs + place_of_part(0, 0, 1)));
            }
            rows.advance(4);
        }
        rows.hide_strides();
        add_group(acc, rows, scales, unit, sums + part * W);
    }
    ahead = own;
}

typedef void (*FixedTile)(const int16_t*, int64_t, int64_t, int64_t, const int16_t*, float, float*, PanelAhead&);
typedef void (*FixedAlone)(const LinearArgs&, int64_t block, int64_t row, float* sums);

struct FixedTiles {
    FixedAlone alone[3][kLinearRows + 1]{}; // for each tuning
    FixedTile several[kFixedRows + 1]{};    // none has few rows
    constexpr FixedTiles() { fill<kFixedRows>(); }
    template <int R> constexpr void fill() {
        if constexpr (R <= kLinearRows) {
            alone[static_cast<int>(Tuning::common)][R] = fixed_alone<Tuning::common, R>;
            alone[static_cast<int>(Tuning::zen5)][R] = fixed_alone<Tuning::zen5, R>;
            alone[static_cast<int>(Tuning::zen4)][R] = fixed_alone<Tuning::zen4, R>;
        }
        if constexpr (2 * R >= kFixedRows) several[R] = fixed_tile<R>;
        if constexpr (R > 1) fill<R - 1>();
    }
};
constexpr FixedTiles kFixedTiles;

// Several tiles of rows, from row0 on; the weights of a group lie in the first-level cache until they have met all of them.
inline void fixed_together(const LinearArgs& a, int64_t block, int64_t row0, const EvenTiles& tiles, int64_t count, PanelAhead* ahead,
                           float* sums) {
    alignas(64) int16_t numbers[kFixedInputs * kColumnBlock];
    const int64_t padded = round_up(a.k, kDepthStep), rows = tiles.begin(count);
    for (int64_t i = 0; i < rows * kColumnBlock; i += W) vstore(sums + i, vzero());
    FixedGroups weights(a, block);
    for (int64_t k = 0; k < padded; k += kFixedInputs) {
        const int64_t inputs = min64(kFixedInputs, padded - k), scales = bytes_to_scale(padded, k, inputs);
        const float unit = weights.open();
        weights.take(weights.at, inputs, numbers);
        weights.at += inputs / 4 * kGroupBytes;
        for (int64_t t = 0; t < count; ++t) {
            const int16_t* x = static_cast<const int16_t*>(a.x) + (row0 + tiles.begin(t)) * a.x_stride + k;
            kFixedTiles.several[tiles.rows(t)](x, a.x_stride, scales, inputs, numbers, unit, sums + tiles.begin(t) * kColumnBlock, ahead[t]);
        }
    }
    store_block(a, block, row0, rows, sums);
}

void linear_fixed(const LinearArgs& a, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
    alignas(64) float sums[kFixedSumRows * kColumnBlock];
    const int64_t block_bytes = compact_block_bytes(a.k);
    const EvenTiles parts(row1 - row0, (row1 - row0 + kFixedSumRows - 1) / kFixedSumRows);
    for (int64_t row = row0, part = 0; row < row1; row += parts.rows(part++)) {
        const int64_t rows = parts.rows(part), count = (rows + kFixedRows - 1) / kFixedRows;
        const EvenTiles tiles(rows, count);
        const SharedAhead shared(a, block_bytes, count);
        for (int64_t block = block0; block < block1; ++block) {
            if (rows <= kLinearRows) {
                kFixedTiles.alone[static_cast<int>(a.tuning)][rows](a, block, row, sums);
                continue;
            }
            const char* own = static_cast<const char*>(a.weight) + block * block_bytes;
            const char* panel = panel_after(a, block, block1, block_bytes);
            PanelAhead ahead[kFixedSumRows / kFixedRows + 1];
            for (int64_t t = 0; t < count; ++t) ahead[t] = shared.of(t, panel, own);
            fixed_together(a, block, row, tiles, count, ahead, sums);
        }
    }
    if (a.past_caches) vstream_end();
}
