// The tile instructions of AMX-BF16 and AMX-INT8 in plain C++, for tests of the code that uses them. What the processor refuses, as
// tiles that are not configured or do not fit one another, ends the process here too. Included inside its user's namespace.

struct TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
};

struct TileState {
    TileConfig config;
    uint8_t data[8][16][64];
};

thread_local TileState tile_state;

inline void tile_must(bool legal) {
    if (!legal) __builtin_trap();
}

inline void tile_configure(const TileConfig& config) {
    tile_must(config.palette == 1 && config.start_row == 0);
    for (int t = 0; t < 8; ++t) {
        tile_must(config.rows[t] <= 16 && config.column_bytes[t] <= 64 && (config.rows[t] == 0) == (config.column_bytes[t] == 0));
    }
    tile_state.config = config;
    __builtin_memset(tile_state.data, 0, sizeof tile_state.data);
}
inline void tile_fence() {}
inline void tile_release() { tile_state.config = TileConfig{}; }

inline bool tile_is_there(int t) { return tile_state.config.rows[t] > 0; }

inline void tile_zero(int t) {
    tile_must(tile_is_there(t));
    __builtin_memset(tile_state.data[t], 0, sizeof tile_state.data[t]);
}

inline void tile_load(int t, const void* from, int64_t stride) {
    tile_zero(t);
    for (int r = 0; r < tile_state.config.rows[t]; ++r) {
        __builtin_memcpy(tile_state.data[t][r], static_cast<const char*>(from) + r * stride, tile_state.config.column_bytes[t]);
    }
}

inline void tile_store(int t, void* to, int64_t stride) {
    tile_must(tile_is_there(t));
    for (int r = 0; r < tile_state.config.rows[t]; ++r) {
        __builtin_memcpy(static_cast<char*>(to) + r * stride, tile_state.data[t][r], tile_state.config.column_bytes[t]);
    }
}

// c: [m, n] numbers of 4 bytes, a: [m, k], b: [k, n].
inline void tile_must_fit(int c, int a, int b) {
    const TileConfig& config = tile_state.config;
    tile_must(tile_is_there(a) && tile_is_there(b) && tile_is_there(c) && a != b && a != c && b != c);
    tile_must(config.rows[c] == config.rows[a] && config.column_bytes[c] == config.column_bytes[b]);
    tile_must(config.column_bytes[a] == config.rows[b] * 4);
}

inline void tile_dot(int c, int a, int b) {
    tile_must_fit(c, a, b);
    const TileConfig& config = tile_state.config;
    for (int m = 0; m < config.rows[c]; ++m) {
        float sums[16];
        uint16_t inputs[32];
        __builtin_memcpy(sums, tile_state.data[c][m], sizeof sums);
        __builtin_memcpy(inputs, tile_state.data[a][m], sizeof inputs);
        for (int k = 0; k < config.column_bytes[a] / 4; ++k) {
            uint16_t pairs[32];
            __builtin_memcpy(pairs, tile_state.data[b][k], sizeof pairs);
            for (int n = 0; n < config.column_bytes[c] / 4; ++n) {
                sums[n] += from_bf16(inputs[2 * k]) * from_bf16(pairs[2 * n]);
                sums[n] += from_bf16(inputs[2 * k + 1]) * from_bf16(pairs[2 * n + 1]);
            }
        }
        __builtin_memcpy(tile_state.data[c][m], sums, sizeof sums);
    }
}

// Signed bytes of a times unsigned bytes of b.
inline void tile_dot_bytes(int c, int a, int b) {
    tile_must_fit(c, a, b);
    const TileConfig& config = tile_state.config;
    for (int m = 0; m < config.rows[c]; ++m) {
        int32_t sums[16];
        __builtin_memcpy(sums, tile_state.data[c][m], sizeof sums);
        for (int k = 0; k < config.column_bytes[a]; ++k) {
            const int32_t input = static_cast<int8_t>(tile_state.data[a][m][k]);
            const uint8_t* line = tile_state.data[b][k / 4];
            for (int n = 0; n < config.column_bytes[c] / 4; ++n) sums[n] += input * line[4 * n + k % 4];
        }
        __builtin_memcpy(tile_state.data[c][m], sums, sizeof sums);
    }
}

#define OCTAVO_TILE_DOT_BYTES(c, a, b) tile_dot_bytes(c, a, b)
#define OCTAVO_TILE_ZERO(t) tile_zero(t)
#define OCTAVO_TILE_LOAD(t, p, stride) tile_load(t, p, stride)
#define OCTAVO_TILE_STORE(t, p, stride) tile_store(t, p, stride)
#define OCTAVO_TILE_DOT(c, a, b) tile_dot(c, a, b)
