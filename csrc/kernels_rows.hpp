// Kernels that treat one row after another: norms, rotary positions, gates.
// Included inside the instruction set's own namespace.

inline float sum_of_squares(const float* x, int64_t n) {
    Vec acc = vzero();
    for (int64_t i = 0; i < n; i += W) {
        Vec v = vload_part(x + i, min64(W, n - i));
        acc = vfma(v, v, acc);
    }
    return vsum(acc);
}

// Other threads have written rows in part: to ask for a row while the one before is computed takes less time than to wait for it.
inline void fetch_row(const float* x, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(x + i);
}

inline void norm_row(const float* x, const float* weight, void* out, int64_t n, float eps, bool bf16) {
    float mean = sum_of_squares(x, n) / static_cast<float>(n);
    Vec scale = vset(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < n; i += W) {
        int64_t part = min64(W, n - i);
        vstore_as(out, i, vmul(vmul(vload_part(x + i, part), scale), vload_part(weight + i, part)), part, bf16);
    }
}

void rms_norm(const NormArgs& a, int64_t row0, int64_t row1) {
    int64_t bytes = a.out_bf16 ? 2 : 4;
    for (int64_t r = row0; r < row1; ++r) {
        if (r + 1 < row1) fetch_row(a.x + (r + 1) * a.size, a.size);
        norm_row(a.x + r * a.size, a.weight, static_cast<char*>(a.out) + r * a.size * bytes, a.size, a.eps, a.out_bf16);
    }
}

void head_norm(const HeadsArgs& a, int64_t row0, int64_t row1) {
    for (int64_t r = row0; r < row1; ++r) {
        for (int32_t h = a.first_head; h < a.first_head + a.num_heads; ++h) {
            float* x = a.qkv + r * a.stride + static_cast<int64_t>(h) * a.head_dim;
            norm_row(x, a.weight, x, a.head_dim, a.eps, false);
        }
    }
}

void rotary(const HeadsArgs& a, int64_t row0, int64_t row1) {
    const int64_t half = a.head_dim / 2;
    for (int64_t r = row0; r < row1; ++r) {
        if (r + 1 < row1) fetch_row(a.qkv + (r + 1) * a.stride + a.first_head * a.head_dim, a.num_heads * a.head_dim);
        const float* cos = a.cos_sin + static_cast<int64_t>(a.positions[r]) * a.head_dim;
        const float* sin = cos + half;
        for (int32_t h = a.first_head; h < a.first_head + a.num_heads; ++h) {
            float* x = a.qkv + r * a.stride + static_cast<int64_t>(h) * a.head_dim;
            for (int64_t i = 0; i < half; i += W) {
                int64_t part = min64(W, half - i);
                Vec first = vload_part(x + i, part), second = vload_part(x + half + i, part);
                Vec c = vload_part(cos + i, part), s = vload_part(sin + i, part);
                vstore_as(x, i, vsub(vmul(first, c), vmul(second, s)), part, false);
                vstore_as(x, half + i, vfma(second, c, vmul(first, s)), part, false);
            }
        }
    }
}

inline Vec gated(Vec gate, Vec up) {
    Vec silu = vdiv(gate, vadd(vset(1.0f), vexp(vsub(vzero(), gate))));
    return vmul(silu, up);
}

void silu_and_mul(const GatedArgs& a, int64_t row0, int64_t row1) {
    int64_t bytes = a.out_bf16 ? 2 : 4;
    for (int64_t r = row0; r < row1; ++r) {
        const float* gate = a.gate_up + r * 2 * a.size;
        const float* up = gate + a.size;
        void* out = static_cast<char*>(a.out) + r * a.size * bytes;
        for (int64_t i = 0; i < a.size; i += W) {
            int64_t part = min64(W, a.size - i);
            vstore_as(out, i, gated(vload_part(gate + i, part), vload_part(up + i, part)), part, a.out_bf16);
        }
    }
}

void silu_and_mul_block(const GatedBlockArgs& a) {
    for (int64_t r = 0; r < a.rows; ++r) {
        const float* gate = a.sums + r * 2 * kColumnBlock;
        void* out = static_cast<char*>(a.out) + r * a.out_stride * (a.out_bf16 ? 2 : 4);
        for (int64_t i = 0; i < kColumnBlock; i += W) {
            Vec g = vload(gate + i), up = vload(gate + kColumnBlock + i);
            if (a.bias) {
                g = vadd(g, vload(a.bias + i));
                up = vadd(up, vload(a.bias + a.size + i));
            }
            vstore_as(out, i, gated(g, up), W, a.out_bf16);
        }
    }
}

void expand_bf16(const uint16_t* src, float* dst, int64_t count) {
    int64_t i = 0;
    for (; i + W <= count; i += W) vstore(dst + i, vload_bf16(src + i));
    for (; i < count; ++i) dst[i] = from_bf16(src[i]);
}
