// Weights that were packed before, maybe by another process.
#include <limits>

#include "device_output.hpp"
#include "device_parallel.hpp"

namespace octavo {

namespace {

void check_memory(const WeightMemory::Slice& memory, int64_t bytes) {
    check(memory.bytes() == bytes, "a weight's memory must be as large as the weight");
    check(reinterpret_cast<uintptr_t>(memory.data()) % kCacheLine == 0, "a weight's memory must begin with a cache line");
}

// Of blocks with so many elements: lists of ascending places within them, each with its end.
void check_exceptions(const PackedWeight& weight, int64_t blocks, int64_t elements) {
    const std::vector<uint32_t>& all = weight.exceptions;
    check(static_cast<int64_t>(weight.first_exceptions.size()) == blocks, "there must be exceptions of each block");
    int64_t at = 0;
    const auto count = static_cast<int64_t>(all.size());
    for (const int64_t first : weight.first_exceptions) {
        check(first == at && at < count, "exceptions must follow one another");
        for (int64_t place = -1; all[at] != kNoException; ++at) {
            check(all[at] >> 8 > place && all[at] >> 8 < elements, "an exception must have a place in its block");
            place = all[at] >> 8;
            check(at + 1 < count, "exceptions must end");
        }
        ++at;
    }
    check(at == count, "exceptions must be of blocks");
}

} // namespace

std::string Device::packing() const {
    std::string name = std::string(kernels_->isa) + (act_bf16_ ? " bfloat16" : " float32");
    if (pairs_) name += " paired";
    if (act_bf16_ && kernels_->linear_compact) name += kernels_->fix_block ? " fixed" : " compact";
    return name;
}

std::unique_ptr<IntegerWeight> Device::restored(int bits, int64_t rows, int64_t columns, bool gated, bool paired, WeightMemory::Slice memory) const {
    const int64_t groups = groups_of_row(bits, columns);
    check_gates(rows, gated);
    check(!paired || (pairs_ && bits == 4 && groups % 2 == 0), "this device has no such pairs");
    check_memory(memory, integer_weight_bytes(rows, groups, bits, paired));
    return std::make_unique<IntegerWeight>(rows, groups, bits, gated, paired, std::move(memory));
}

std::unique_ptr<PackedWeight> Device::restored(std::unique_ptr<PackedWeight> weight) const {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 4;
    const int64_t rows = weight->rows, k = weight->columns;
    check(rows >= 0 && k >= 1 && rows < kMost && k < kMost, "size out of range");
    check_gates(rows, weight->gated);
    const int64_t bytes = packed_weight_bytes(rows, k, act_bf16_);
    if (weight->highs.empty()) {
        check_memory(weight->memory, bytes);
        return weight;
    }
    const int64_t blocks = divide_up(rows, kColumnBlock), elements = divide_up(k, kDepthStep) * 2 * kTileElements;
    check(act_bf16_ && kernels_->linear_compact && elements < kMostPlaces, "this device has no such compact blocks");
    check_memory(weight->memory, bytes / 4 * 3);
    const bool fixed = kernels_->fix_block;
    const auto has = [](const auto& vector, int64_t size) { check(static_cast<int64_t>(vector.size()) == size, "compact blocks need as much beside them"); };
    has(weight->highs, blocks * 16);
    has(weight->exponents, fixed ? blocks * fixed_groups(k) : 0);
    has(weight->scales, fixed ? blocks * kColumnBlock : 0);
    has(weight->errors, fixed ? blocks * kColumnBlock : 0);
    check_exceptions(*weight, blocks, elements);
    weight->make_compact();
    return weight;
}

} // namespace octavo
