// Where keys and values lie in the cache, how they get there and how they are found. Included inside the instruction set's own
// namespace.
//
// Where head_dim is a multiple of 16 and block_size one of 4, a block holds groups of 16 positions, or of 8 or 4 where its
// size is no multiple of more, in the form that the products read: keys transposed, [head_dim / 2][positions][2] in bf16 and int8 and
// [head_dim][positions] in fp32; values in pairs of positions, [pairs][head_dim][2] in bf16 and int8 and
// [positions][head_dim] in fp32. Other blocks hold plain rows, which are gathered into groups of 16. In int8, a kv
// head's part of a block ends with the scales: of the keys of its positions, then of the values.

constexpr int kMostGroups = kTokenTile / kLeastGroup;

// Positions of a block's groups; 0: plain rows.
inline int group_of(int64_t block_size, int64_t head_dim) {
    if (head_dim % 16 != 0) return 0;
    for (int size = kTokenGroup; size >= kLeastGroup; size /= 2) {
        if (block_size % size == 0) return size;
    }
    return 0;
}

template <class T> constexpr bool kPaired = sizeof(T) <= 2;   // bf16, int8
template <class T> constexpr bool kQuantized = sizeof(T) == 1; // int8

// Element i of the keys, and of the values, of position p of a group of so many.
template <class T> inline int64_t key_at(int64_t i, int64_t p, int64_t group) {
    return kPaired<T> ? i / 2 * (2 * group) + p * 2 + i % 2 : i * group + p;
}
template <class T> inline int64_t value_at(int64_t i, int64_t p, int64_t width) {
    return kPaired<T> ? p / 2 * (2 * width) + i * 2 + p % 2 : p * width + i;
}

constexpr int64_t kMostDims = 256;

constexpr float kLeastMagnitude = 1e-30f; // rows whose largest is below count as zeros

// The largest magnitude of the vectors at(i), i below n. False: something is not finite.
template <class At> inline bool find_largest(int64_t n, const At& at, float& largest) {
    Vec most = vzero(), odd = vzero();
    for (int64_t i = 0; i < n; i += W) {
        const Vec v = at(i);
        most = vmax(most, vmax(v, vsub(vzero(), v)));
        odd = vadd(odd, vsub(v, v)); // NaN where v is not finite
    }
    largest = vmax_of(most);
    return vsum(odd) == 0.0f;
}

// A head's row as the cache stores it; returns its scale. In int8 whole vectors are written.
inline float convert(const float* x, int64_t n, float* out) {
    __builtin_memcpy(out, x, n * sizeof(float));
    return 1.0f;
}
inline float convert(const float* x, int64_t n, uint16_t* out) {
    for (int64_t i = 0; i < n; i += W) vstore_as(out, i, vload_part(x + i, min64(W, n - i)), min64(W, n - i), true);
    return 1.0f;
}
inline float convert(const float* x, int64_t n, int8_t* out) {
    float largest;
    const bool finite = find_largest(n, [&](int64_t i) { return vload_part(x + i, min64(W, n - i)); }, largest);
    const Vec inverse = vset(finite && largest >= kLeastMagnitude ? 127.0f / largest : 0.0f);
    for (int64_t i = 0; i < n; i += W) vstore_int8(out + i, finite ? vmul(vload_part(x + i, min64(W, n - i)), inverse) : vzero());
    return !finite ? __builtin_nanf("") : largest < kLeastMagnitude ? 0.0f : largest / 127.0f;
}

// Puts a position's keys, and values, into the group where they belong. Touches nothing of the other positions: another thread
// may be putting those.
template <class T> inline void put_keys(const T* k, int64_t dim, int64_t p, int64_t size, T* group) {
    constexpr int64_t kTogether = kPaired<T> ? 2 : 1;
    for (int64_t i = 0; i < dim; i += kTogether) __builtin_memcpy(group + key_at<T>(i, p, size), k + i, kTogether * sizeof(T));
}
template <class T> inline void put_values(const T* v, int64_t dim, int64_t p, T* group) {
    T* to = group + value_at<T>(0, p, dim);
    if constexpr (kQuantized<T>) {
        for (int64_t i = 0; i < dim; i += 16) store_apart(to + 2 * i, v + i); // dim is a multiple of 16 where there are groups
    } else {
        for (int64_t i = 0; i < dim; ++i) to[kPaired<T> ? 2 * i : i] = v[i];
    }
}

// 32 bits divide faster than 64.
inline int64_t block_at(const AttentionArgs& a, int64_t position) {
    return static_cast<uint32_t>(position) / static_cast<uint32_t>(a.block_size);
}
inline int64_t offset_at(const AttentionArgs& a, int64_t position) {
    return static_cast<uint32_t>(position) % static_cast<uint32_t>(a.block_size);
}

// One kv head's part of a block. The scales are there in int8 only.
template <class T> struct Head {
    T *keys, *values;
    float *key_scales, *value_scales;
};

template <class T> inline Head<T> head_of(const AttentionArgs& a, int64_t block, int64_t kv_head) {
    char* start = static_cast<char*>(a.kv) + (block * a.num_kv_heads + kv_head) * a.head_bytes;
    const int64_t elements = int64_t{a.block_size} * a.head_dim;
    T* keys = reinterpret_cast<T*>(start);
    float* scales = reinterpret_cast<float*>(start + 2 * elements * static_cast<int64_t>(sizeof(T)));
    return {keys, keys + elements, scales, scales + a.block_size};
}

template <class T> inline void write_head(const AttentionArgs& a, int64_t row, int64_t kv_head) {
    const int64_t dim = a.head_dim, slot = a.slots[row];
    if (slot < 0) return;
    const float* k = a.qkv + row * a.stride + (a.num_heads + kv_head) * dim;
    const Head<T> head = head_of<T>(a, block_at(a, slot), kv_head);
    const int64_t offset = offset_at(a, slot);
    T keys[kMostDims], values[kMostDims];
    const float key_scale = convert(k, dim, keys), value_scale = convert(k + a.num_kv_heads * dim, dim, values);
    if (kQuantized<T>) {
        head.key_scales[offset] = key_scale;
        head.value_scales[offset] = value_scale;
    }
    if (const int size = group_of(a.block_size, dim)) {
        const int64_t p = offset % size, group = (offset - p) * dim;
        put_keys<T>(keys, dim, p, size, head.keys + group);
        put_values<T>(values, dim, p, head.values + group);
    } else {
        __builtin_memcpy(head.keys + offset * dim, keys, dim * sizeof(T));
        __builtin_memcpy(head.values + offset * dim, values, dim * sizeof(T));
    }
}

[[maybe_unused]] void write_kv(const AttentionArgs& a, int64_t row0, int64_t row1) {
    for (int64_t r = row0; r < row1; ++r) {
        for (int64_t h = 0; h < a.num_kv_heads; ++h) {
            switch (a.kv_type) {
            case KVType::fp32: write_head<float>(a, r, h); break;
            case KVType::bf16: write_head<uint16_t>(a, r, h); break;
            case KVType::int8: write_head<int8_t>(a, r, h); break;
            }
        }
    }
}

// A tile's groups of positions, `group` of them each, in the cache or gathered. `first` and `count` are in groups of 16 in any
// case, and so are the scales once the tile is settled: what they cut off does not exist.
template <class T> struct Tile {
    const T* keys[kMostGroups];
    const T* values[kMostGroups];
    const float* key_scales[kMostGroups]; // int8 only
    const float* value_scales[kMostGroups];
    int64_t first, count;
    int group;
    bool found; // where all of its groups in the cache lie
};

// Memory for a tile's gathered rows or scales.
struct Gathered {
    char *keys, *values;
    float* scales; // of the keys, then of the values
    int64_t width;
};

// False: a bad block id.
template <class T> inline bool find_head(const AttentionArgs& a, const AttentionUnit& u, int64_t position, Head<T>& head) {
    const int32_t block = a.tables[u.seq * a.table_width + block_at(a, position)];
    if (block < 0 || block >= a.num_blocks) return false;
    head = head_of<T>(a, block, u.kv_head);
    return true;
}

// Copies positions [begin, end), all in group g of the tile, which starts at `start`, from plain rows.
template <class T>
inline bool gather_group(const AttentionArgs& a, const AttentionUnit& u, int64_t g, int64_t start, int64_t begin, int64_t end,
                         const Gathered& to, Tile<T>& tile) {
    T* keys = reinterpret_cast<T*>(to.keys) + g * kTokenGroup * to.width;
    T* values = reinterpret_cast<T*>(to.values) + g * kTokenGroup * to.width;
    float *key_scales = to.scales + g * kTokenGroup, *value_scales = key_scales + kTokenTile;
    for (int64_t p = begin; p < end; ++p) {
        Head<T> head;
        if (!find_head<T>(a, u, p, head)) return false;
        const int64_t offset = offset_at(a, p);
        const T *k = head.keys + offset * a.head_dim, *v = head.values + offset * a.head_dim;
        for (int64_t i = 0; i < a.head_dim; ++i) {
            keys[key_at<T>(i, p - start, kTokenGroup)] = k[i];
            values[value_at<T>(i, p - start, to.width)] = v[i];
        }
        if (kQuantized<T>) {
            key_scales[p - start] = head.key_scales[offset];
            value_scales[p - start] = head.value_scales[offset];
        }
    }
    tile.keys[g] = keys;
    tile.values[g] = values;
    tile.key_scales[g] = key_scales;
    tile.value_scales[g] = value_scales;
    return true;
}

// found(g, head, offset) for the groups of the cache that hold positions [begin, end), that of `begin` being number g, but
// not for those whose block id is bad. False: there was one.
template <class T, class Found>
inline __attribute__((always_inline)) bool over_groups(const AttentionArgs& a, const AttentionUnit& u, int64_t begin,
                                                       int64_t end, int64_t g, int64_t group, const Found& found) {
    const int32_t* table = a.tables + u.seq * a.table_width + block_at(a, begin);
    int64_t offset = offset_at(a, begin) / group * group;
    bool valid = true;
    for (int64_t left = end - begin / group * group; left > 0; left -= group, ++g) {
        const uint32_t block = static_cast<uint32_t>(*table);
        if (block < static_cast<uint32_t>(a.num_blocks)) found(g, head_of<T>(a, block, u.kv_head), offset);
        else valid = false;
        offset += group;
        if (offset == a.block_size) offset = 0, ++table;
    }
    return valid;
}

// Where the groups of the cache lie that hold the tile's positions [begin, end). False: a bad block id.
template <class T>
inline bool find_groups(const AttentionArgs& a, const AttentionUnit& u, int64_t start, int64_t begin, int64_t end, Tile<T>& tile) {
    const int64_t group = tile.group;
    const int64_t first = (begin - start) / group;
    return over_groups<T>(a, u, begin, end, first, group, [&](int64_t g, const Head<T>& head, int64_t offset) {
        tile.keys[g] = head.keys + offset * a.head_dim;
        tile.values[g] = head.values + offset * a.head_dim;
        if (!kQuantized<T>) return;
        tile.key_scales[g] = head.key_scales + offset;
        tile.value_scales[g] = head.value_scales + offset;
    });
}

// Groups of fewer than 16: those of the first and the last 16 positions that were not looked for get keys that are multiplied
// with the others, to no effect; scales are put together.
template <class T> inline void fill_up(int64_t begin, int64_t end, float* scales, Tile<T>& tile) {
    const int64_t each = kTokenGroup / tile.group, first = begin / tile.group, last = (end - 1) / tile.group;
    for (int64_t g = tile.first * each; g < first; ++g) tile.keys[g] = tile.keys[first];
    for (int64_t g = last + 1; g < tile.count * each; ++g) tile.keys[g] = tile.keys[last];
    if (!kQuantized<T>) return;
    const int64_t bytes = tile.group * static_cast<int64_t>(sizeof(float));
    for (int64_t g = first; g <= last; ++g) {
        __builtin_memcpy(scales + g * tile.group, tile.key_scales[g], bytes);
        __builtin_memcpy(scales + kTokenTile + g * tile.group, tile.value_scales[g], bytes);
    }
    for (int64_t g = tile.first; g < tile.count; ++g) {
        tile.key_scales[g] = scales + g * kTokenGroup;
        tile.value_scales[g] = scales + kTokenTile + g * kTokenGroup;
    }
}

// Makes the tile that starts at `start` ready for its positions [begin, end), once. False: a bad block id.
template <class T>
inline bool settle_tile(const AttentionArgs& a, const AttentionUnit& u, const Gathered& memory, int64_t start, int64_t begin,
                        int64_t end, Tile<T>& tile) {
    const int group = group_of(a.block_size, a.head_dim);
    tile.first = (begin - start) / kTokenGroup;
    tile.count = (end - start + kTokenGroup - 1) / kTokenGroup;
    tile.group = group ? group : kTokenGroup;
    if (group) {
        if (!tile.found && !find_groups(a, u, start, begin, end, tile)) return false;
        if (group < kTokenGroup) fill_up(begin - start, end - start, memory.scales, tile);
        return true;
    }
    for (int64_t g = tile.first; g < tile.count; ++g) {
        const int64_t position = start + g * kTokenGroup;
        const int64_t low = max64(begin, position), high = min64(end, position + kTokenGroup);
        if (!gather_group(a, u, g, position, low, high, memory, tile)) return false;
    }
    return true;
}
