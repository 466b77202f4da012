#include "weight_memory.hpp"

#include <algorithm>

#include "sizes.hpp"

namespace octavo {

namespace {

constexpr int64_t kRegion = int64_t{32} << 20; // pages that nobody writes to cost nothing

} // namespace

WeightMemory::Slice WeightMemory::take(int64_t bytes) {
    const int64_t begin = round_up(used_, kCacheLine);
    if (region_ && bytes <= region_->bytes() - begin) {
        used_ = begin + bytes;
        return {region_, region_->data() + begin, bytes};
    }
    auto region = std::make_shared<const Region>(std::max(bytes, kRegion));
    if (bytes < kRegion) { // else the one being cut stays
        region_ = region;
        used_ = bytes;
    }
    return {region, region->data(), bytes};
}

void WeightMemory::shorten(Slice& slice, int64_t bytes) {
    if (slice.owner_ == region_ && slice.data_ + slice.bytes_ == region_->data() + used_) used_ -= slice.bytes_ - bytes;
    slice.bytes_ = bytes;
}

int64_t packed_weight_bytes(int64_t rows, int64_t columns, bool bf16) {
    return round_up(rows, kColumnBlock) * (bf16 ? round_up(columns, kDepthStep) * 2 : columns * 4);
}

void PackedWeight::make_compact() {
    const bool fixed = !scales.empty();
    compact.reset(new Compact{highs.data(), exceptions.data(), first_exceptions.data(), fixed ? exponents.data() : nullptr, fixed ? scales.data() : nullptr});
}

} // namespace octavo
