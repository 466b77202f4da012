// Writing the sums of products, of plain weights and of integers alike: a bias and a residual are added, and what lies beyond the
// last output is left out. Included inside the instruction set's own namespace.

template <class Args> constexpr bool past_caches(const Args& a) {
    if constexpr (requires { a.past_caches; }) return a.past_caches;
    else return false;
}

// W columns of one row, of those below n.
template <class Args> inline void store_output(const Args& a, int64_t row, int64_t column, Vec v) {
    int64_t part = min64(W, a.n - column);
    if (part <= 0) return;
    if (a.bias) v = vadd(v, vload_part(a.bias + column, part));
    if (a.residual) v = vadd(v, vload_part(a.residual + row * a.out_stride + column, part));
    vstore_as(a.out, (row - a.first_row) * a.out_stride + column - a.first_column, v, part, false);
}

// The sums of a tile whose vectors v of columns begin at columns[v]. Unrolled, so that they never leave their registers.
template <class Args, int R, int V>
inline __attribute__((always_inline)) void store_tile(const Args& a, int64_t row, const int64_t (&columns)[V], const Vec (&acc)[R][V]) {
    if (columns[V - 1] + W > a.n) { // columns ascend
        Vec copy[R][V];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) copy[r][v] = acc[r][v];
        }
        for (int r = 0; r < R; ++r) {
            for (int v = 0; v < V; ++v) store_output(a, row + r, columns[v], copy[r][v]);
        }
        return;
    }
    float* out = a.out + (row - a.first_row) * a.out_stride - a.first_column;
    const float *bias = a.bias, *residual = a.residual ? a.residual + row * a.out_stride : nullptr;
    const int64_t stride = a.out_stride;
    const bool streams = past_caches(a);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
            Vec sum = acc[r][v];
            if (bias) sum = vadd(sum, vload(bias + columns[v]));
            if (residual) sum = vadd(sum, vload(residual + r * stride + columns[v]));
            if (streams) vstream(out + r * stride + columns[v], sum);
            else vstore(out + r * stride + columns[v], sum);
        }
    }
}
