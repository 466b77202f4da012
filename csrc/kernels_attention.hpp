// Paged causal attention with an online softmax. Included inside the instruction set's own namespace.
//
// A unit is a few query rows of one sequence with all query heads of one kv head. It walks the sequence in tiles of kTokenTile
// positions aligned to absolute position; each tile is gathered from its blocks once, as fp32, K transposed. A row's
// arithmetic is the same in any unit: scores in ascending dimension, values in ascending position, tiles in order.
// Positions that a row does not see are never multiplied into it, so that whatever lies there cannot matter.

struct AttentionScratch {
    float *q, *k, *v, *scores, *acc, *max, *sum;
    int64_t width; // head_dim padded to whole vectors
};

inline int64_t padded_dim(int64_t head_dim) { return round_up(head_dim, 16); }

int64_t attention_scratch(const AttentionArgs& a, int64_t rows) {
    int64_t heads = rows * (a.num_heads / a.num_kv_heads), width = padded_dim(a.head_dim);
    return heads * (2 * width + kTokenTile) + round_up(2 * heads, 16) + 2 * kTokenTile * width;
}

inline AttentionScratch lay_out(const AttentionArgs& a, int64_t heads, float* scratch) {
    AttentionScratch s;
    s.width = padded_dim(a.head_dim);
    s.k = scratch;
    s.v = s.k + kTokenTile * s.width;
    s.q = s.v + kTokenTile * s.width;
    s.acc = s.q + heads * s.width;
    s.scores = s.acc + heads * s.width;
    s.max = s.scores + heads * kTokenTile;
    s.sum = s.max + heads;
    return s;
}

// c[r] = or += a[r][k0 .. k1) times b[k0 .. k1) for R rows and V vectors of columns.
template <int R, int V>
inline __attribute__((always_inline)) void multiply_panel(const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                                                          int64_t ldc, int64_t k0, int64_t k1, bool add) {
    Vec acc[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) acc[r][v] = add ? vload(c + r * ldc + v * W) : vzero();
    }
    for (int64_t k = k0; k < k1; ++k) {
        Vec row[V];
        for (int v = 0; v < V; ++v) row[v] = vload(b + k * ldb + v * W);
        for (int r = 0; r < R; ++r) {
            Vec x = vset(a[r * lda + k]);
            for (int v = 0; v < V; ++v) acc[r][v] = vfma(x, row[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) vstore(c + r * ldc + v * W, acc[r][v]);
    }
}

template <int V>
void multiply_rows(int64_t rows, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t k0,
                   int64_t k1, bool add) {
    int64_t r = 0;
    for (; r + kAttentionRows <= rows; r += kAttentionRows) {
        multiply_panel<kAttentionRows, V>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, k0, k1, add);
    }
    a += r * lda;
    c += r * ldc;
    switch (rows - r) {
    case 5: return multiply_panel<kAttentionRows < 5 ? 1 : 5, V>(a, lda, b, ldb, c, ldc, k0, k1, add);
    case 4: return multiply_panel<kAttentionRows < 5 ? 1 : 4, V>(a, lda, b, ldb, c, ldc, k0, k1, add);
    case 3: return multiply_panel<3, V>(a, lda, b, ldb, c, ldc, k0, k1, add);
    case 2: return multiply_panel<2, V>(a, lda, b, ldb, c, ldc, k0, k1, add);
    case 1: return multiply_panel<1, V>(a, lda, b, ldb, c, ldc, k0, k1, add);
    default: return;
    }
}

// columns: a multiple of W.
inline void multiply(int64_t rows, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                     int64_t columns, int64_t k0, int64_t k1, bool add) {
    int64_t j = 0;
    for (; j + kAttentionVecs * W <= columns; j += kAttentionVecs * W) {
        multiply_rows<kAttentionVecs>(rows, a, lda, b + j, ldb, c + j, ldc, k0, k1, add);
    }
    for (; j < columns; j += W) multiply_rows<1>(rows, a, lda, b + j, ldb, c + j, ldc, k0, k1, add);
}

inline void load_queries(const AttentionArgs& a, const AttentionUnit& u, const AttentionScratch& s) {
    const int64_t group = a.num_heads / a.num_kv_heads;
    const Vec scale = vset(a.scale);
    for (int64_t r = u.row0; r < u.row1; ++r) {
        for (int64_t g = 0; g < group; ++g) {
            const float* src = a.qkv + r * a.stride + (u.kv_head * group + g) * a.head_dim;
            float* dst = s.q + ((r - u.row0) * group + g) * s.width;
            for (int64_t i = 0; i < a.head_dim; i += W) {
                int64_t part = min64(W, a.head_dim - i);
                vstore(dst + i, vmul(vload_part(src + i, part), scale));
            }
        }
    }
}

// Transposes `count` <= W positions of keys, row p at rows[p], into columns column .. column + W of s.k.
inline void transpose_bf16(const AttentionArgs& a, const uint16_t* const* rows, int64_t count, float* out) {
    for (int64_t d = 0; d < a.head_dim; d += 2 * W) {
        int64_t pairs = min64(W, (a.head_dim - d) / 2);
        Vec r[W];
        for (int64_t p = 0; p < W; ++p) {
            r[p] = p < count ? vload_part(reinterpret_cast<const float*>(rows[p] + d), pairs) : vzero();
        }
        vtranspose(r);
        for (int64_t i = 0; i < pairs; ++i) {
            vstore(out + (d + 2 * i) * kTokenTile, vfirst_of(r[i]));
            vstore(out + (d + 2 * i + 1) * kTokenTile, vsecond_of(r[i]));
        }
    }
}

inline void transpose_f32(const AttentionArgs& a, const float* const* rows, int64_t count, float* out) {
    for (int64_t d = 0; d < a.head_dim; d += W) {
        int64_t part = min64(W, a.head_dim - d);
        Vec r[W];
        for (int64_t p = 0; p < W; ++p) r[p] = p < count ? vload_part(rows[p] + d, part) : vzero();
        vtranspose(r);
        for (int64_t i = 0; i < part; ++i) vstore(out + (d + i) * kTokenTile, r[i]);
    }
}

inline void copy_values(const AttentionArgs& a, const char* row, float* out) {
    const float* fp32 = reinterpret_cast<const float*>(row);
    const uint16_t* bf16 = reinterpret_cast<const uint16_t*>(row);
    if (!a.kv_bf16) {
        for (int64_t i = 0; i < a.head_dim; i += W) vstore(out + i, vload_part(fp32 + i, min64(W, a.head_dim - i)));
        return;
    }
    int64_t i = 0;
    for (; i + W <= a.head_dim; i += W) vstore(out + i, vload_bf16(bf16 + i));
    for (; i < a.head_dim; ++i) out[i] = from_bf16(bf16[i]);
}

// Where the keys of a position lie; its values follow at part_bytes. Null: the block table holds a bad id there.
struct Positions {
    const char* kv;
    const int32_t* table;
    int64_t block_size, row_bytes, part_bytes, block_bytes;
    int32_t num_blocks;

    Positions(const AttentionArgs& a, const AttentionUnit& u)
        : table(a.tables + u.seq * a.table_width), block_size(a.block_size), row_bytes(a.head_dim * (a.kv_bf16 ? 2 : 4)),
          part_bytes(block_size * row_bytes), block_bytes(2 * part_bytes * a.num_kv_heads), num_blocks(a.num_blocks) {
        kv = static_cast<const char*>(a.kv) + u.kv_head * 2 * part_bytes;
    }
    const char* at(int64_t position) const {
        int32_t block = table[position / block_size];
        if (block < 0 || block >= num_blocks) return nullptr;
        return kv + block * block_bytes + position % block_size * row_bytes;
    }
};

// Asks for what gather_tile will read at [begin, end), in the order of addresses; a bad id is left for it to report.
// Always inline: GCC takes a function that only prefetches for one without effects and drops the call.
inline __attribute__((always_inline)) void prefetch_positions(const Positions& where, int64_t begin, int64_t end) {
    while (begin < end) {
        const int64_t count = min64(end - begin, where.block_size - begin % where.block_size);
        const char* keys = where.at(begin);
        if (!keys) return;
        for (int part = 0; part < 2; ++part, keys += where.part_bytes) {
            for (int64_t byte = 0; byte < count * where.row_bytes; byte += 64) __builtin_prefetch(keys + byte);
        }
        begin += count;
    }
}

// Gathers positions [begin, end) of the tile that starts at `tile`, and asks for those one tile on. False: a bad block id.
inline bool gather_tile(const AttentionArgs& a, const AttentionScratch& s, const Positions& where, int64_t tile, int64_t begin,
                        int64_t end, int64_t last) {
    for (int64_t p = tile; p < tile + kTokenTile; p += W) {
        const int64_t low = max64(p, begin), high = min64(p + W, end);
        prefetch_positions(where, p + kTokenTile, min64(p + kTokenTile + W, last));
        if (low >= high) continue;
        const char* keys[W];
        for (int64_t i = low; i < high; ++i) {
            keys[i - p] = where.at(i);
            if (!keys[i - p]) return false;
            copy_values(a, keys[i - p] + where.part_bytes, s.v + (i - tile) * s.width);
        }
        for (int64_t i = p; i < low; ++i) keys[i - p] = keys[low - p]; // masked later
        float* out = s.k + (p - tile);
        if (a.kv_bf16) transpose_bf16(a, reinterpret_cast<const uint16_t* const*>(keys), high - p, out);
        else transpose_f32(a, reinterpret_cast<const float* const*>(keys), high - p, out);
    }
    return true;
}

// Masks one head's scores outside [begin, end), makes them weights and rescales what was accumulated before.
inline void softmax_row(const AttentionScratch& s, int64_t head, int begin, int end) {
    const Vec minus_inf = vset(-__builtin_inff());
    float* scores = s.scores + head * kTokenTile;
    Vec best = minus_inf;
    for (int i = 0; i < kTokenTile; i += W) best = vmax(best, vkeep(vload(scores + i), begin - i, end - i, minus_inf));
    float old_max = s.max[head], tile_max = vmax_of(best);
    float new_max = tile_max > old_max ? tile_max : old_max;
    const Vec top = vset(new_max);
    Vec sum = vzero();
    for (int i = 0; i < kTokenTile; i += W) {
        Vec weight = vexp(vsub(vkeep(vload(scores + i), begin - i, end - i, minus_inf), top));
        vstore(scores + i, weight);
        sum = vadd(sum, weight);
    }
    float lanes[W];
    vstore(lanes, vexp(vset(old_max - new_max)));
    float shrink = lanes[0];
    s.max[head] = new_max;
    s.sum[head] = s.sum[head] * shrink + vsum(sum);
    if (shrink == 1.0f) return;
    const Vec factor = vset(shrink);
    float* acc = s.acc + head * s.width;
    for (int64_t i = 0; i < s.width; i += W) vstore(acc + i, vmul(vload(acc + i), factor));
}

struct Span {
    int begin, end;
};

// What the unit's row sees of the tile, relative to its start.
inline Span seen(const AttentionArgs& a, int64_t first_end, int64_t row, int64_t tile) {
    int64_t end = first_end + row, begin = a.window > 0 ? max64(0, end - a.window) : 0;
    return {static_cast<int>(min64(max64(begin - tile, 0), kTokenTile)),
            static_cast<int>(min64(max64(end - tile, 0), kTokenTile))};
}

// Adds weights times values: positions that all rows see at once, the others row by row, ascending in either case.
inline void add_values(const AttentionArgs& a, const AttentionScratch& s, int64_t first_end, int64_t rows, int64_t tile) {
    const int64_t group = a.num_heads / a.num_kv_heads;
    int64_t low = 0, high = kTokenTile;
    for (int64_t r = 0; r < rows; ++r) {
        Span span = seen(a, first_end, r, tile);
        low = max64(low, span.begin);
        high = min64(high, span.end);
    }
    high = max64(low, high);
    auto some = [&](int64_t r, int64_t count, int64_t k0, int64_t k1) {
        if (k0 >= k1) return;
        int64_t head = r * group;
        multiply(count * group, s.scores + head * kTokenTile, kTokenTile, s.v, s.width, s.acc + head * s.width, s.width, s.width,
                 k0, k1, true);
    };
    for (int64_t r = 0; r < rows; ++r) {
        Span span = seen(a, first_end, r, tile);
        some(r, 1, span.begin, min64(low, span.end));
    }
    some(0, rows, low, high);
    for (int64_t r = 0; r < rows; ++r) {
        Span span = seen(a, first_end, r, tile);
        some(r, 1, max64(high, span.begin), span.end);
    }
}

inline void write_output(const AttentionArgs& a, const AttentionUnit& u, const AttentionScratch& s) {
    const int64_t group = a.num_heads / a.num_kv_heads;
    for (int64_t r = u.row0; r < u.row1; ++r) {
        for (int64_t g = 0; g < group; ++g) {
            int64_t head = (r - u.row0) * group + g;
            int64_t at = (r * a.num_heads + u.kv_head * group + g) * a.head_dim;
            const Vec scale = vset(1.0f / s.sum[head]);
            for (int64_t i = 0; i < a.head_dim; i += W) {
                Vec v = vmul(vload(s.acc + head * s.width + i), scale);
                vstore_as(a.out, at + i, v, min64(W, a.head_dim - i), a.out_bf16);
            }
        }
    }
}

bool attention(const AttentionArgs& a, const AttentionUnit& u, float* scratch) {
    const int64_t group = a.num_heads / a.num_kv_heads, rows = u.row1 - u.row0, heads = rows * group;
    const AttentionScratch s = lay_out(a, heads, scratch);
    // The first row sees positions below first_end; each further row one more.
    const int64_t first_end = a.seq_lens[u.seq] - (a.query_start[u.seq + 1] - 1 - u.row0), last_end = first_end + rows - 1;
    const int64_t start = a.window > 0 ? max64(0, first_end - a.window) : 0;
    const Positions where(a, u);
    prefetch_positions(where, start, min64(last_end, start / kTokenTile * kTokenTile + kTokenTile));
    load_queries(a, u, s);
    for (int64_t i = 0; i < heads; ++i) {
        s.max[i] = -__builtin_inff();
        s.sum[i] = 0.0f;
    }
    for (int64_t i = 0; i < heads * s.width; ++i) s.acc[i] = 0.0f;
    for (int64_t i = 0; i < kTokenTile; ++i) {
        for (int64_t d = a.head_dim; d < s.width; ++d) s.v[i * s.width + d] = 0.0f;
    }

    for (int64_t tile = start / kTokenTile * kTokenTile; tile < last_end; tile += kTokenTile) {
        if (!gather_tile(a, s, where, tile, max64(start, tile), min64(last_end, tile + kTokenTile), last_end)) return false;
        multiply(heads, s.q, s.width, s.k, kTokenTile, s.scores, kTokenTile, kTokenTile, 0, a.head_dim, false);
        for (int64_t r = 0; r < rows; ++r) {
            Span span = seen(a, first_end, r, tile);
            if (span.begin >= span.end) continue;
            for (int64_t g = 0; g < group; ++g) softmax_row(s, r * group + g, span.begin, span.end);
        }
        add_values(a, s, first_end, rows, tile);
    }
    write_output(a, u, s);
    return true;
}
