#include "result_memory.hpp"

#include <algorithm>
#include <iterator>

#include "sizes.hpp"

namespace octavo {

namespace {

constexpr int64_t kFirstChunk = int64_t{4} << 20;

} // namespace

nb::object ResultMemory::Lease::keep() && {
    return nb::capsule(new Lease(std::move(*this)), [](void* lease) noexcept { delete static_cast<Lease*>(lease); });
}

ResultMemory::Lease ResultMemory::allocate(int64_t bytes, const Kind& kind) {
    if (const auto found = kept_.find(kind); found != kept_.end() && !found->second.empty() && found->second.back().second.bytes >= bytes) {
        char* data = found->second.back().first;
        taken_.insert(found->second.back());
        found->second.pop_back();
        return {shared_from_this(), data};
    }
    bytes = round_up(std::max<int64_t>(bytes, 1), kCacheLine);
    for (auto& chunk : chunks_) {
        for (auto gap = chunk->free.begin(); gap != chunk->free.end(); ++gap) {
            if (gap->second < bytes) continue;
            char* data = gap->first;
            taken_[data] = {chunk.get(), bytes, kind};
            if (gap->second > bytes) chunk->free.emplace_hint(std::next(gap), data + bytes, gap->second - bytes);
            chunk->free.erase(gap);
            return {shared_from_this(), data};
        }
    }
    const int64_t last = chunks_.empty() ? kFirstChunk / 2 : chunks_.back()->region.bytes();
    chunks_.push_back(std::make_unique<Chunk>(std::max(bytes, 2 * last)));
    return allocate(bytes, kind);
}

void ResultMemory::release(char* data) {
    const auto found = taken_.find(data);
    if (const Kind kind = found->second.kind; !kind.any()) {
        kept_[kind].push_back(*found);
        taken_.erase(found);
        return;
    }
    std::map<char*, int64_t>& free = found->second.chunk->free;
    auto gap = free.emplace(data, found->second.bytes).first;
    taken_.erase(found);
    if (const auto next = std::next(gap); next != free.end() && gap->first + gap->second == next->first) {
        gap->second += next->second;
        free.erase(next);
    }
    if (gap != free.begin()) {
        const auto before = std::prev(gap);
        if (before->first + before->second == gap->first) {
            before->second += gap->second;
            free.erase(gap);
        }
    }
}

bool ResultMemory::owns(const char* data) const {
    return std::any_of(chunks_.begin(), chunks_.end(), [data](const auto& chunk) {
        return data >= chunk->region.data() && data < chunk->region.data() + chunk->region.bytes();
    });
}

} // namespace octavo
