// Large memory: zeroed regions on huge pages, and the forms in which weights and the KV cache lie in it.
#pragma once

#include <cstdint>

namespace octavo {

// Zero bytes straight from the system, aligned to at least 64; on huge pages where large. Throws std::bad_alloc.
class Region {
public:
    explicit Region(int64_t bytes);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    char* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

private:
    void* mapped_;
    int64_t mapped_bytes_;
    char* data_;
    int64_t bytes_;
};

// A matrix [rows, columns] packed for linear and embedding; see kernels_linear.hpp.
struct PackedWeight {
    PackedWeight(int64_t rows, int64_t columns, bool bf16);

    int64_t rows, columns;
    bool bf16;
    Region region;
};

// The KV cache of all layers: [layer][block][kv_head][k|v][block_size * head_dim], on the device and on the host side. How the
// last part is ordered is up to the kernels: see kernels_attention.hpp.
struct KVBlocks {
    KVBlocks(int64_t num_layers, int64_t num_blocks, int64_t num_host_blocks, int32_t num_kv_heads, int32_t head_dim,
             int32_t block_size, bool bf16);

    int64_t layer_block_bytes() const; // of one block in one layer
    char* layer(int64_t index) const { return device.data() + index * num_blocks * layer_block_bytes(); }

    int64_t num_layers, num_blocks, num_host_blocks;
    int32_t num_kv_heads, head_dim, block_size;
    bool bf16;
    Region device, host;
};

} // namespace octavo
