#include "memory.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <system_error>

#include "kernels.hpp"
#include "sizes.hpp"

namespace octavo {

namespace {

constexpr int64_t kPage = 4096, kHugePage = int64_t{2} << 20;
constexpr int64_t kPopulated = int64_t{512} << 20; // of a KV cache in the background; what lies beyond is found as it is used

// The product of sizes that come from files and flags; throws where it does not fit.
template <typename... Sizes> int64_t product(Sizes... sizes) {
    int64_t result = 1;
    for (int64_t size : {static_cast<int64_t>(sizes)...}) {
        if (size < 0 || __builtin_mul_overflow(result, size, &result) || result > int64_t{1} << 50) {
            throw std::invalid_argument("size out of range");
        }
    }
    return result;
}

KVType kv_type(const std::string& dtype) {
    if (dtype == "float32") return KVType::fp32;
    if (dtype == "bfloat16") return KVType::bf16;
    if (dtype == "int8") return KVType::int8;
    throw std::invalid_argument("the KV cache's dtype must be float32, bfloat16 or int8");
}

} // namespace

Region::Region(int64_t bytes) : bytes_(bytes) {
    bool huge = bytes >= kHugePage;
    mapped_bytes_ = huge ? round_up(bytes, kHugePage) + kHugePage : round_up(bytes > 0 ? bytes : 1, kPage);
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    int64_t start = reinterpret_cast<int64_t>(mapped_);
    data_ = static_cast<char*>(mapped_) + (huge ? round_up(start, kHugePage) - start : 0);
#ifdef MADV_HUGEPAGE
    if (huge) madvise(data_, round_up(bytes, kHugePage), MADV_HUGEPAGE); // a refusal costs speed only
#endif
}

// By touching one after the other. Asked for all of them at once (MADV_POPULATE_WRITE), the system keeps the map of the process's
// memory to itself until it has them, and whoever else maps memory waits: for seconds, if this thread is put aside meanwhile.
void Region::populate(int64_t begin, int64_t end) const {
    for (int64_t at = begin; at < std::min(end, bytes_); at += kPage) {
        char zero = 0; // for zero: a write that changes nothing, which no compiler leaves out
        __atomic_compare_exchange_n(data_ + at, &zero, char{0}, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

Region::~Region() { munmap(mapped_, mapped_bytes_); }

// Beyond what an engine pages by: a context in one block is how contiguous keys and values are measured.
constexpr int32_t kMostInBlock = 65536;

KVBlocks::KVBlocks(int64_t num_layers, int64_t num_blocks, int64_t num_host_blocks, int32_t num_kv_heads, int32_t head_dim,
                   int32_t block_size, const std::string& dtype)
    : num_layers(num_layers), num_blocks(num_blocks), num_host_blocks(num_host_blocks), num_kv_heads(num_kv_heads),
      head_dim(head_dim), block_size(block_size), type(kv_type(dtype)),
      device(product(num_layers, num_blocks, num_kv_heads, head_bytes())),
      host(product(num_layers, num_host_blocks, num_kv_heads, head_bytes())) {
    if (block_size < 1 || block_size > kMostInBlock) throw std::invalid_argument("block size must be 1 to 65536");
    if (head_dim < 8 || head_dim > 256 || head_dim % 8) throw std::invalid_argument("head_dim must be a multiple of 8 up to 256");
    if (num_kv_heads < 1) throw std::invalid_argument("there must be a kv head");
}

void KVBlocks::find_pages() {
    if (device.bytes() < kHugePage || populating_.joinable()) return;
    try {
        populating_ = std::thread([this] { populate(); });
    } catch (const std::system_error&) { // pages are then found as they are used
    }
}

KVBlocks::~KVBlocks() {
    stopping_ = true;
    if (populating_.joinable()) join(populating_, process_);
}

// The first blocks of every layer, a huge page at a time.
void KVBlocks::populate() {
    pthread_setname_np(pthread_self(), "octavo-pages"); // for who looks at the process
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19); // of this thread: requests come first
    const int64_t layer = num_blocks * layer_block_bytes(), most = std::min(layer, kPopulated / std::max<int64_t>(1, num_layers));
    for (int64_t begin = 0; begin < most; begin += kHugePage) {
        for (int64_t i = 0; i < num_layers && !stopping_; ++i) {
            device.populate(i * layer + begin, i * layer + std::min(begin + kHugePage, layer));
        }
    }
}

int64_t KVBlocks::head_bytes() const {
    const int64_t elements = product(2, block_size, head_dim);
    switch (type) {
    case KVType::fp32: return elements * 4;
    case KVType::bf16: return elements * 2;
    case KVType::int8: return elements + int64_t{2} * block_size * 4; // and a scale for each position's k and v
    }
    return 0;
}

} // namespace octavo
