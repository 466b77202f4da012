// The tile instructions of AMX-BF16 and AMX-INT8. Included inside the instruction set's own namespace.

struct alignas(64) TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
};

// The compiler believes that the instruction reads 8 bytes: the clobber keeps the stores to the rest.
inline void tile_configure(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
// The compiler believes that a load reads no memory: stores to what it reads must not be moved behind or before it, or left out.
inline void tile_fence() { __asm__ volatile("" ::: "memory"); }
inline void tile_release() { _tile_release(); }

#define OCTAVO_TILE_ZERO(t) _tile_zero(t)
#define OCTAVO_TILE_LOAD(t, p, stride) _tile_loadd(t, p, stride)
#define OCTAVO_TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define OCTAVO_TILE_DOT(c, a, b) _tile_dpbf16ps(c, a, b)
#define OCTAVO_TILE_DOT_BYTES(c, a, b) _tile_dpbsud(c, a, b) // signed bytes of a times unsigned bytes of b
