// Kernels over rows of logits. NaN counts as minus infinity. Included inside the instruction set's own namespace.

inline Vec vclean(Vec v) { return vmax(v, vset(-__builtin_inff())); } // the second operand where the first is NaN

inline Vec vload_clean(const float* x, int64_t i, int64_t n) {
    Vec v = vclean(vload_part(x + i, min64(W, n - i)));
    return n - i >= W ? v : vkeep(v, 0, static_cast<int>(n - i), vset(-__builtin_inff()));
}

// The first place of the largest value. With `allowed` of what it allows, which goes to `out`, the rest as minus infinity.
template <bool kMasked> inline int64_t best_logit(const float* x, const uint32_t* allowed, int64_t n, float* out) {
    const Vec infinite = vset(__builtin_inff()), impossible = vset(-__builtin_inff());
    Vec best = impossible;
    uint32_t unsound = 0;
    for (int64_t i = 0; i < n; i += W) {
        const int count = static_cast<int>(min64(W, n - i));
        Vec v = vload_part(x + i, count);
        if (count < W) v = vkeep(v, 0, count, impossible);
        unsound |= vnot_below(v, infinite);
        if constexpr (kMasked) {
            v = vselect_bits(allowed, i, v, impossible);
            vstore_as(out, i, v, count, false);
        }
        best = vmax(best, v);
    }
    const float top = vmax_of(best);
    if (unsound || !(top > -__builtin_inff())) return -1;
    const float* among = kMasked ? out : x;
    const Vec wanted = vset(top);
    int64_t i = 0;
    while (i + W <= n && !vnot_below(vload(among + i), wanted)) i += W;
    while (among[i] != top) ++i;
    return i;
}

int64_t argmax(const float* x, int64_t n) { return best_logit<false>(x, nullptr, n, nullptr); }

int64_t masked_argmax(const float* x, const uint32_t* allowed, int64_t n, float* out) {
    return best_logit<true>(x, allowed, n, out);
}

inline void best_of_row(const BestArgs& a, int64_t row) {
    const float* x = a.sums + row * a.stride;
    const uint32_t* allowed = a.allowed ? a.allowed + row * a.allowed_stride : nullptr;
    float best = a.values[row];
    for (int64_t i = 0; i < a.columns; ++i) {
        const auto place = static_cast<int32_t>(a.first_column + i);
        if (!(x[i] < __builtin_inff())) {
            best = __builtin_inff();
        } else if (allowed && !(allowed[place / 32] >> (place % 32) & 1)) {
            continue;
        } else if (x[i] > best || (x[i] == best && place < a.places[row])) {
            best = x[i];
            a.places[row] = place;
        }
    }
    a.values[row] = best;
}

// Few blocks have something for a row: the best of so many columns that came before is seldom passed.
void best_of_block(const BestArgs& a) {
    const int64_t whole = a.columns / W * W;
    const Vec least = vset(-__FLT_MAX__), infinite = vset(__builtin_inff()), impossible = vset(-__builtin_inff());
    for (int64_t r = 0; r < a.rows; ++r) {
        const float* x = a.sums + r * a.stride;
        const Vec best = vmax(vset(a.values[r]), least);
        uint32_t wanted = whole < a.columns;
        if (a.allowed) {
            const uint32_t* allowed = a.allowed + r * a.allowed_stride;
            for (int64_t i = 0; i < whole; i += W) {
                const Vec v = vload(x + i);
                wanted |= vnot_below(vselect_bits(allowed, a.first_column + i, v, impossible), best) | vnot_below(v, infinite);
            }
        } else {
            for (int64_t i = 0; i < whole; i += W) wanted |= vnot_below(vload(x + i), best);
        }
        if (wanted) best_of_row(a, r);
    }
}

// Few blocks promise a row anything: the best of so many columns that came before is seldom reached. kWhole: of kColumnBlock columns,
// all of them allowed.
template <bool kWhole> inline __attribute__((always_inline)) void promise_of_rows(const PromiseArgs& a) {
    constexpr int V = kColumnBlock / W;
    const Vec least = vset(-__FLT_MAX__), impossible = vset(-__builtin_inff());
    Vec per_input[V], per_error[V];
    for (int v = 0; v < V; ++v) {
        per_input[v] = vload(a.per_input + a.first_column + v * W);
        per_error[v] = vload(a.per_error + a.first_column + v * W);
    }
    for (int64_t r = 0; r < a.rows; ++r) {
        const float* x = a.sums + r * a.stride;
        const Vec length = vset(a.lengths[r]), change = vset(a.changes[r]);
        Vec top = impossible, sure = impossible;
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
            Vec sum = vload(x + v * W);
            if (!kWhole) {
                sum = vkeep(sum, 0, static_cast<int>(a.columns - v * W), impossible);
                if (a.allowed) sum = vselect_bits(a.allowed + r * a.allowed_stride, a.first_column + v * W, sum, impossible);
            }
            const Vec off = vfma(length, per_input[v], vmul(change, per_error[v]));
            top = vmax(top, vadd(sum, off));
            sure = vmax(sure, vsub(sum, off));
        }
        float& promised = a.tops[r * a.tops_stride];
        promised = -__builtin_inff();
        if (!vnot_below(top, vmax(vset(a.floors[r]), least))) continue;
        promised = vmax_of(top);
        const float least_of_all = vmax_of(sure);
        a.floors[r] = least_of_all > a.floors[r] ? least_of_all : a.floors[r];
    }
}

void promise_of_block(const PromiseArgs& given) {
    const PromiseArgs a = given; // no store changes it
    if (a.columns == kColumnBlock && !a.allowed) promise_of_rows<true>(a);
    else promise_of_rows<false>(a);
}

void shares(const float* x, int64_t n, float max, float inverse_temperature, float* out, double* sums) {
    const Vec top = vset(max), scale = vset(inverse_temperature);
    for (int64_t b = 0; b * kShareBlock < n; ++b) {
        Vec acc = vzero();
        int64_t end = min64(n, (b + 1) * kShareBlock);
        for (int64_t i = b * kShareBlock; i < end; i += W) {
            Vec e = vexp(vmul(vsub(vload_clean(x, i, end), top), scale));
            vstore_as(out, i, e, min64(W, end - i), false);
            acc = vadd(acc, e);
        }
        sums[b] = static_cast<double>(vsum(acc));
    }
}

void block_maxima(const float* x, int64_t n, float* maxima) {
    for (int64_t b = 0; b * kMaxBlock < n; ++b) {
        Vec best = vset(-__builtin_inff());
        int64_t end = min64(n, (b + 1) * kMaxBlock);
        for (int64_t i = b * kMaxBlock; i < end; i += W) best = vmax(best, vload_clean(x, i, end));
        maxima[b] = vmax_of(best);
    }
}

// Of blocks of kMaxBlock logits whose maximum reaches `least`: add(place, logits) for each vector; skip(begin, end) for the others.
// done(block) after each block of kShareBlock.
template <class Add, class Skip, class Done>
inline void over_reaching(const float* x, const float* maxima, int64_t n, float least, const Add& add, const Skip& skip, const Done& done) {
    for (int64_t b = 0; b * kShareBlock < n; ++b) {
        const int64_t stop = min64(n, (b + 1) * kShareBlock);
        for (int64_t begin = b * kShareBlock; begin < stop; begin += kMaxBlock) {
            const int64_t end = min64(stop, begin + kMaxBlock);
            if (maxima[begin / kMaxBlock] >= least) {
                if (end - begin == kMaxBlock) {
                    for (int64_t i = begin; i < begin + kMaxBlock; i += W) add(i, vclean(vload(x + i)));
                } else {
                    for (int64_t i = begin; i < end; i += W) add(i, vload_clean(x, i, end));
                }
            } else {
                skip(begin, end);
            }
        }
        done(b);
    }
}

Reached reached(const float* x, const float* shares, const float* maxima, int64_t n, float least) {
    const Vec one = vset(1.0f), none = vzero(), bound = vset(least);
    Vec count = none, sum = none;
    Reached all{0, 0};
    over_reaching(
        x, maxima, n, least,
        [&](int64_t i, Vec logits) {
            count = vadd(count, vselect_ge(logits, bound, one, none));
            sum = vadd(sum, vselect_ge(logits, bound, vload_part(shares + i, min64(W, n - i)), none));
        },
        [](int64_t, int64_t) {},
        [&](int64_t) {
            all.share += static_cast<double>(vsum(sum));
            sum = none;
        });
    all.count = static_cast<int64_t>(vsum(count));
    return all;
}

int64_t places(const float* x, const float* maxima, int64_t n, float least, float end, int32_t* to) {
    const Vec low = vset(least), high = vset(end);
    const uint32_t endless = end == __builtin_inff() ? ~uint32_t{0} : 0;
    int64_t count = 0;
    over_reaching(
        x, maxima, n, least,
        [&](int64_t i, Vec logits) {
            uint32_t here = vnot_below(logits, low) & (endless | ~vnot_below(logits, high)) & ((uint32_t{1} << min64(W, n - i)) - 1);
            for (; here; here &= here - 1) to[count++] = static_cast<int32_t>(i + __builtin_ctz(here));
        },
        [](int64_t, int64_t) {}, [](int64_t) {});
    return count;
}

void keep(const KeepArgs& a) {
    const Vec none = vzero(), bound = vset(a.least), least_share = vset(a.min_share);
    Vec sum = none;
    over_reaching(
        a.x, a.maxima, a.n, a.least,
        [&](int64_t i, Vec logits) {
            const int64_t count = min64(W, a.n - i);
            Vec share = vload_part(a.shares + i, count);
            share = vselect_ge(share, least_share, vselect_ge(logits, bound, share, none), none);
            if (i + count > a.end) { // from there on those above the bound only
                share = vselect_ge(bound, logits, vkeep(share, 0, static_cast<int>(max64(0, a.end - i)), none), share);
            }
            vstore_as(a.shares, i, share, count, false);
            sum = vadd(sum, share);
        },
        [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i += W) vstore_as(a.shares, i, none, min64(W, end - i), false);
        },
        [&](int64_t block) {
            a.sums[block] = static_cast<double>(vsum(sum));
            sum = none;
        });
}
