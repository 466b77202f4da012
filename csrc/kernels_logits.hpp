// Kernels over rows of logits. NaN counts as minus infinity. Included inside the instruction set's own namespace.

inline Vec vclean(Vec v) { return vmax(v, vset(-__builtin_inff())); } // the second operand where the first is NaN

inline Vec vload_clean(const float* x, int64_t i, int64_t n) {
    Vec v = vclean(vload_part(x + i, min64(W, n - i)));
    return n - i >= W ? v : vkeep(v, 0, static_cast<int>(n - i), vset(-__builtin_inff()));
}

int64_t argmax(const float* x, int64_t n) {
    Vec best = vset(-__builtin_inff()), numbers = vset(1.0f);
    for (int64_t i = 0; i < n; i += W) {
        const Vec v = n - i >= W ? vload(x + i) : vkeep(vload_n(x + i, n - i), 0, static_cast<int>(n - i), vset(-__builtin_inff()));
        numbers = vselect_ge(v, v, numbers, vzero());
        best = vmax(best, vclean(v));
    }
    const float top = vmax_of(best);
    if (!(top > -__builtin_inff()) || !(top < __builtin_inff()) || vsum(numbers) != static_cast<float>(W)) return -1;
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] == top) return i;
    }
    return -1;
}

bool mask_logits(const float* x, const uint32_t* allowed, int64_t n, float* out) {
    const Vec infinite = vset(__builtin_inff()), impossible = vset(-__builtin_inff());
    uint32_t unsound = 0;
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const Vec v = vload(x + i);
        unsound |= vnot_below(v, infinite);
        vstore(out + i, vselect_bits(allowed, i, v, impossible));
    }
    if (i < n) {
        const Vec v = vload_n(x + i, n - i);
        unsound |= vnot_below(v, infinite);
        vstore_n(out + i, vselect_bits(allowed, i, v, impossible), n - i);
    }
    return !unsound;
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
