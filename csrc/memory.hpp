// Large memory: zeroed regions on huge pages, and the form in which the KV cache lies in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "kernels.hpp"
#include "process.hpp"

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
    // Has the system find the pages of [begin, end) now rather than where they are first written. Contents stay as they are, and
    // others may write meanwhile.
    void populate(int64_t begin, int64_t end) const;

private:
    void* mapped_;
    int64_t mapped_bytes_;
    char* data_;
    int64_t bytes_;
};

// The KV cache of all layers: [layer][block][kv_head][k|v][block_size * head_dim], then in int8 [k|v][block_size] scales of each
// kv head; on the device and on the host side. How a kv head's part is ordered is up to the kernels: see kernels_kv.hpp.
struct KVBlocks {
    KVBlocks(int64_t num_layers, int64_t num_blocks, int64_t num_host_blocks, int32_t num_kv_heads, int32_t head_dim,
             int32_t block_size, const std::string& dtype);
    ~KVBlocks();

    int64_t head_bytes() const; // of one kv head of one block in one layer
    int64_t layer_block_bytes() const { return num_kv_heads * head_bytes(); }
    char* layer(int64_t index) const { return device.data() + index * num_blocks * layer_block_bytes(); }
    // Begins to find pages for the blocks that are handed out first, beside whatever happens meanwhile: a step that had to wait
    // for them would be slow, by milliseconds for each 2 MiB on a virtual machine with fresh memory.
    void find_pages();

    int64_t num_layers, num_blocks, num_host_blocks;
    int32_t num_kv_heads, head_dim, block_size;
    KVType type;
    Region device, host;

private:
    void populate();

    std::atomic<bool> stopping_{false};
    const Process process_;
    std::thread populating_;
};

} // namespace octavo
