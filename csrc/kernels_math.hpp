// Functions of vectors built on the SIMD abstraction. Included inside the instruction set's own namespace.

// exp(x) within 2 ulp; 0 from -87.3 down (exactly: masked logits are never drawn), infinite from 88.38 on, NaN of NaN: where either
// argument of vmax and vmin is NaN they give the second.
inline Vec vexp(Vec x) {
    const Vec low = vset(-87.3f);
    Vec y = vmin(vset(89.0f), vmax(low, x));
    Vec n = vround(vmul(y, vset(1.44269504f)));
    Vec r = vfma(n, vset(-0.693359375f), y);
    r = vfma(n, vset(2.12194440e-4f), r);
    Vec p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vadd(vfma(vmul(r, r), p, r), vset(1.0f));
    return vselect_ge(low, x, vzero(), vmul(p, vpow2(n)));
}

inline float from_bf16(uint16_t x) {
    uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// Two numbers of 16 bits, as instructions that multiply pairs take them.
template <class T> inline int32_t pair_at(const T* p) {
    static_assert(sizeof(T) == 2);
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return pair;
}

// Round to nearest even; NaN stays NaN.
inline uint16_t to_bf16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    if (x != x) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Stores n <= W values as fp32 or bf16 at element i of out.
inline void vstore_as(void* out, int64_t i, Vec v, int64_t n, bool bf16) {
    if (!bf16) {
        float* p = static_cast<float*>(out) + i;
        if (n == W) vstore(p, v);
        else vstore_n(p, v, n);
        return;
    }
    uint16_t* p = static_cast<uint16_t*>(out) + i;
    if (n == W) {
        vstore_bf16(p, v);
        return;
    }
    float rest[W];
    vstore(rest, v);
    for (int64_t j = 0; j < n; ++j) p[j] = to_bf16(rest[j]);
}

inline Vec vload_part(const float* p, int64_t n) { return n == W ? vload(p) : vload_n(p, n); }
inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }
