// What a group of integer weights adds to the sums of a tile of rows; see integer.hpp for how both lie in memory. Included inside
// the instruction set's own namespace, after kernels_groups.hpp and kernels_records.hpp.

// Loops over rows and vectors are unrolled by word: a compiler that leaves one of them a loop keeps all sums in memory.

// A place that no compiler knows, so that it does not keep what it has loaded there before: registers hold no more.
inline __attribute__((always_inline)) const char* anew(const char* p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

// A group's weights of less than 8 bits as bytes: eight lines of each half of a block.
constexpr int64_t kGroupLines = 2 * 8 * kLine; // bytes of a group's weights, one each

template <int kBits> void unpack_lines(const char* w, char* lines) {
    constexpr int kStep = static_cast<int>(sizeof(Bytes));
    for (int half = 0; half < 2; ++half, w += kBits * kLine, lines += 8 * kLine) {
        for (int at = 0; at < kLine; at += kStep) {
#pragma GCC unroll 16
            for (int line = 0; line < 8; ++line) {
                const Bytes values = values_of_line<kBits>(w + at, line);
                __builtin_memcpy(lines + line * kLine + at, &values, sizeof values);
            }
        }
    }
}

// Bits of a weight as a tile reads it.
template <int kBits, bool kUnpacked> constexpr int kBitsRead = kUnpacked ? 8 : kBits;

// A whole group unpacked: its lines, then as floats its scales, what else there is for each output, and scale_below of the scales.
constexpr int kPerOutput = 3;
constexpr int64_t kGroupUnpacked = kGroupLines + kPerOutput * kIntegerColumns * 4;

template <bool kUnpacked> inline __attribute__((always_inline)) Vec load_scale(const char* scales, int64_t at) {
    if constexpr (kUnpacked) return vload(reinterpret_cast<const float*>(scales) + at);
    else return vload_half(scales + at * 2);
}

template <int kBits> void unpack_group(const char* w, char* to) {
    unpack_lines<kBits>(w, to);
    const char* scales = w + scale_of_column(kBits, 0);
    float* floats = reinterpret_cast<float*>(to + kGroupLines);
    for (int column = 0; column < kIntegerColumns; column += W) {
        const Vec scale = vload_half(scales + column * 2);
        vstore(floats + column, scale);
        vstore(floats + kIntegerColumns + column, vload_half(scales + (kIntegerColumns + column) * 2));
        vstore(floats + 2 * kIntegerColumns + column, scale_below<kBits, 1>(scale));
    }
}

// Where the bytes of a row are: rows are `kStride` bytes apart, or if kLow is not 0 two by two, that far from each other.
template <int kStride, int kLow> constexpr int row_place(int r) { return kLow ? r / 2 * kStride + r % 2 * kLow : r * kStride; }

// Sums of lines on their way to dots, for R rows as above and V vectors of outputs: they start, a line's weights are added with its
// activations, and they become dots with those that there were.
template <int R, int V> inline __attribute__((always_inline)) void start_sums(Fours (&sums)[R][V], const Dots (&dots)[R][V]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sums[r][v] = dstart4(dots[r][v]);
    }
}
template <int kStride, int kLow, int R, int V>
inline __attribute__((always_inline)) void add_line(Fours (&sums)[R][V], const Bytes (&weights)[V], const char* x, int line) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Quad quad = dquad4(word_at(x + row_place<kStride, kLow>(r) + line * 4));
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) sums[r][v] = ddot4(sums[r][v], weights[v], quad);
    }
}
template <int R, int V> inline __attribute__((always_inline)) void end_sums(Dots (&dots)[R][V], const Fours (&sums)[R][V]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) dots[r][v] = dend4(dots[r][v], sums[r][v]);
    }
}

// The exact dots of a group's bytes at x, for R rows as above and V vectors of outputs, `w` being those of the first vector. They are
// added to those that are given.
template <int kStride, int kLow, bool kUnpacked, int R, int V>
inline __attribute__((always_inline)) void dot_bytes4(Dots (&dots)[R][V], const char* x, const char* w) {
    constexpr int kLines = 4;
    Fours sums[R][V];
    start_sums(sums, dots);
#pragma GCC unroll 16
    for (int line = 0; line < kLines; ++line) {
        Bytes low[V], high[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            const char* at = w + place_of_column(kBitsRead<4, kUnpacked>, v * W) + line * kLine;
            const Bytes raw = dload(at);
            low[v] = kUnpacked ? raw : dlow(raw);
            high[v] = kUnpacked ? dload(at + kLines * kLine) : dhigh(raw);
        }
        add_line<kStride, kLow>(sums, low, x, line);
        add_line<kStride, kLow>(sums, high, x, line + kLines);
    }
    end_sums(dots, sums);
}

template <int kStride, int kLow, int R, int V> inline __attribute__((always_inline)) void dot_bytes8(Dots (&dots)[R][V], const char* x, const char* w) {
    constexpr int kLines = 8;
#pragma GCC unroll 16
    for (int line = 0; line < kLines; ++line) {
        Eights weights[V];
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            weights[v] = deights(dload(w + place_of_column(kLines, v * W) + line * kLine));
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Quad8 quad = dquad8(word_at(x + row_place<kStride, kLow>(r) + line * 4));
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = ddot8(dots[r][v], weights[v], quad);
        }
    }
}

// The same for one half of a group's inputs, with 5 or 6 bits. Sums of four lines, or of two, fit 16 bits: 4 * 2 * 31 * 127 and
// 2 * 2 * 63 * 127.
template <int kStride, int kLow, int kBits, int kHalf, bool kUnpacked, int R, int V>
inline __attribute__((always_inline)) void dot_half(Dots (&dots)[R][V], const char* x, const char* w) {
    constexpr int kLines = kBits == 5 ? 4 : 2;
#pragma GCC unroll 16
    for (int first = 4 * kHalf; first < 4 * kHalf + 4; first += kLines) {
        Fours sums[R][V];
        start_sums(sums, dots);
#pragma GCC unroll 16
        for (int line = first; line < first + kLines; ++line) {
            Bytes weights[V];
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                const char* half = w + place_of_column(kBitsRead<kBits, kUnpacked>, v * W);
                weights[v] = kUnpacked ? dload(half + line * kLine) : values_of_line<kBits>(half, line);
            }
            add_line<kStride, kLow>(sums, weights, x, line);
        }
        end_sums(dots, sums);
    }
}

// Of the rows' second levels, how far from the first: kLow.
template <int kBytes> struct Apart {
    static constexpr int kLow = kBytes;
};

// The exact dots of a group's values, and an offset(row): those of their bytes, which bytes(dots, x, w, apart) adds; of both levels at
// once where registers hold as many dots, else one after the other.
template <int kBits, int kLevels, int R, int V, class Offset, class Call>
inline __attribute__((always_inline)) void dot_levels(Dots (&dots)[R][V], const char* x, const char* w, const Offset& offset,
                                                      const Call& bytes) {
    if constexpr (kLevels == 2 && R * V <= kDotsOfLevels) {
        Dots both[2 * R][V];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                both[2 * r][v] = dzero();
                both[2 * r + 1][v] = offset(r);
            }
        }
        bytes(both, x, w, Apart<record_bytes(kBits, 1)>());
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = dadd(dtimes255(both[2 * r][v]), both[2 * r + 1][v]);
        }
        return;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        const Dots start = kLevels == 1 ? offset(r) : dzero();
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) dots[r][v] = start;
    }
    bytes(dots, x, w, Apart<0>());
    if constexpr (kLevels == 2) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Dots own = offset(r);
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) dots[r][v] = dadd(dtimes255(dots[r][v]), own);
        }
        bytes(dots, x + record_bytes(kBits, 1), anew(w), Apart<0>());
    }
}

// What a tile of R rows and V vectors of outputs adds up, from pass to pass in memory: [row][output of the block]. A tile that is alone
// may have so many rows that the dots of a group take most registers: then the sums of most rows stay in memory.
template <int R, int V> struct Sums {
    static constexpr int kKept = R > kIntegerRows ? kRowsAlone - R : R; // rows whose sums are in registers
    Vec of[kKept > 0 ? kKept : 1][V];
    float* at;

    inline __attribute__((always_inline)) void begin(float* before, bool first) {
        at = before;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                if (r < kKept) of[r][v] = first ? vzero() : vload(place(r, v));
                else if (first) vstore(place(r, v), vzero());
            }
        }
    }
    inline __attribute__((always_inline)) Vec get(int r, int v) const {
        // Else a compiler loads more of them than there are registers, and has to put them away.
        if constexpr (kKept < R) __asm__ volatile("" : : : "memory");
        return r < kKept ? of[r][v] : vload(place(r, v));
    }
    inline __attribute__((always_inline)) void put(int r, int v, Vec sum) {
        if (r < kKept) of[r][v] = sum;
        else vstore(place(r, v), sum);
    }
    inline __attribute__((always_inline)) void keep() const {
#pragma GCC unroll 16
        for (int r = 0; r < kKept; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) vstore(place(r, v), of[r][v]);
        }
    }
    template <class Args> inline __attribute__((always_inline)) void store(const Args& a, int64_t row, const int64_t (&columns)[V]) const {
        if constexpr (kKept == R) return store_tile(a, row, columns, of);
        keep();
        for (int r = 0; r < R; ++r) {
            Vec sums[1][V];
            for (int v = 0; v < V; ++v) sums[0][v] = vload(place(r, v));
            store_tile(a, row + r, columns, sums);
        }
    }

private:
    float* place(int r, int v) const { return at + r * kIntegerColumns + v * W; }
};

// One group's products with 6 bits, of N vectors of outputs from `first` on: what both halves give, and then the activations'
// scale. At a place that no compiler knows, so that it does not keep what it has loaded for other vectors.
template <int R, int N, int kLevels, bool kUnpacked, class Acc>
inline __attribute__((always_inline)) void accumulate_group6(Acc& acc, int first, const char* x, const char* w, const char* scales) {
    constexpr int kStride = record_bytes(6, kLevels);
    x = anew(x);
    Dots dots[R][N];
    Vec products[R][N];
    w += place_of_column(kBitsRead<6, kUnpacked>, first * W);
    const auto offset = [&](int half) {
        return [=](int r) __attribute__((always_inline)) { return dset(offset_of_half(x + r * kStride, half)); };
    };
    dot_levels<6, kLevels>(dots, x, w, offset(0), [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
        dot_half<kStride, apart.kLow, 6, 0, kUnpacked>(to, from, with);
    });
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
        const Vec scale = load_scale<kUnpacked>(scales, (first + v) * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) products[r][v] = vmul(dfloat(dots[r][v]), scale);
    }
    dot_levels<6, kLevels>(dots, x, w, offset(1), [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
        dot_half<kStride, apart.kLow, 6, 1, kUnpacked>(to, from, with);
    });
#pragma GCC unroll 16
    for (int v = 0; v < N; ++v) {
        const Vec scale = load_scale<kUnpacked>(scales, kIntegerColumns + (first + v) * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            products[r][v] = vfma(dfloat(dots[r][v]), scale, products[r][v]);
            acc.put(r, first + v, vfma(products[r][v], vset(scale_at(x + r * kStride)), acc.get(r, first + v)));
        }
    }
}

// Adds one group's products of R rows and V vectors of outputs, `w` and `scales` being those of the first vector.
template <int R, int V, int kBits, int kLevels, bool kUnpacked = false, class Acc>
inline __attribute__((always_inline)) void accumulate_group(Acc& acc, const char* x, const char* w, const char* scales) {
    if constexpr (R == 1 && V > 1 && kBits != 4) { // in the order of memory: what reads ahead in hardware follows that
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            Sums<1, 1> own;
            own.of[0][0] = acc.get(0, v);
            accumulate_group<1, 1, kBits, kLevels>(own, x, w + place_of_column(kBits, v * W), scales + v * W * 2);
            acc.put(0, v, own.get(0, 0));
        }
        return;
    }
    if constexpr (kBits == 6) {
        constexpr int kTogether = R * V <= 8 ? V : 1; // registers hold no more
#pragma GCC unroll 16
        for (int v = 0; v < V; v += kTogether) accumulate_group6<R, kTogether, kLevels, kUnpacked>(acc, v, x, w, scales);
        return;
    }
    constexpr int kStride = record_bytes(kBits, kLevels);
    constexpr int32_t kStart = bias_of(kBits, kLevels);
    const auto none = [](int) __attribute__((always_inline)) { return dset(kStart); };
    Dots dots[R][V];
    if constexpr (kBits == 4) {
        dot_levels<4, kLevels>(dots, x, w, none, [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
            dot_bytes4<kStride, apart.kLow, kUnpacked>(to, from, with);
        });
    } else if constexpr (kBits == 8) {
        const auto all = [=](int r) __attribute__((always_inline)) { return dset(kShifted ? offset_of_all(x + r * kStride) : kStart); };
        dot_levels<8, kLevels>(dots, x, w, all, [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
            dot_bytes8<kStride, apart.kLow>(to, from, with);
        });
    } else {
        dot_levels<5, kLevels>(dots, x, w, none, [](auto& to, const char* from, const char* with, auto apart) __attribute__((always_inline)) {
            dot_half<kStride, apart.kLow, 5, 0, false>(to, from, with);
            dot_half<kStride, apart.kLow, 5, 1, false>(to, from, with);
        });
    }
    constexpr bool kMinimums = kBits != 8;
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        const Vec scale = load_scale<kUnpacked>(scales, v * W);
        const Vec minimum = kMinimums ? load_scale<kUnpacked>(scales, kIntegerColumns + v * W) : vzero();
        const Vec below = kUnpacked && biased(kBits, kLevels) ? load_scale<kUnpacked>(scales, 2 * kIntegerColumns + v * W)
                                                             : scale_below<kBits, kLevels>(scale);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const Vec before = acc.get(r, v);
            const Vec sum = vfma(dscaled<kBits, kLevels>(dots[r][v], scale, below), vset(scale_at(x + r * kStride)), before);
            acc.put(r, v, kMinimums ? vfma(minimum, vset(scaled_sum_at(x + r * kStride)), sum) : sum);
        }
    }
}

template <int R, int V> inline __attribute__((always_inline)) void clear_dots(Dots (&dots)[R][V]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) dots[r][v] = dzero();
    }
}

// The dots of a group of a span are added to others. kInOrder: in the order of memory, as in accumulate_group, and to what does not wait
// for the group before.
template <int kStride, bool kInOrder, int R, int V>
inline __attribute__((always_inline)) void dot_span(Dots (&dots)[R][V], const char* x, const char* w) {
    if constexpr (!kInOrder) return dot_bytes8<kStride, 0>(dots, x, w);
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        Dots own[R][1];
        clear_dots(own);
        dot_bytes8<kStride, 0>(own, x, w + place_of_column(8, v * W));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) dots[r][v] = dadd(dots[r][v], own[r][0]);
    }
}

// Adds a span's products, whose dots are of 8 bits without a bias, `x` and `scales` being those of its last group.
template <int R, int V, class Acc>
inline __attribute__((always_inline)) void accumulate_span(Acc& acc, const Dots (&dots)[R][V], const char* x, const char* scales) {
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) {
        const Vec scale = vload_half(scales + v * W * 2);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const char* record = x + r * record_bytes(8, 1);
            const Dots all = kShifted ? dadd(dots[r][v], dset(offset_of_all(record))) : dots[r][v];
            acc.put(r, v, vfma(vmul(dfloat(all), scale), vset(scale_at(record)), acc.get(r, v)));
        }
    }
}
