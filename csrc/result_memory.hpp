// Memory of results: handed out first fit, taken back when the last reference to a result goes, and handed out again while it
// is still in the caches. So a step needs no more memory than its widest moment. Used with the interpreter's lock held only.
#pragma once

#include <nanobind/nanobind.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memory.hpp"

namespace octavo {

namespace nb = nanobind;

class ResultMemory : public std::enable_shared_from_this<ResultMemory> {
public:
    // Memory for so many bytes, aligned to a cache line, until its lease ends. Throws std::bad_alloc.
    class Lease {
    public:
        Lease(std::shared_ptr<ResultMemory> memory, char* data) : memory_(std::move(memory)), data_(data) {}
        ~Lease() {
            if (memory_) memory_->release(data_);
        }
        Lease(Lease&& other) = default; // leaves no memory behind
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;

        char* data() const { return data_; }
        // Hands the lease over to a Python object that others may keep.
        nb::object keep() &&;

    private:
        std::shared_ptr<ResultMemory> memory_;
        char* data_;
    };

    // What memory is to be used for again, if not for anything: for as many bytes of each of the same things.
    struct Kind {
        const void* things = nullptr;
        int64_t bytes = 0;
        bool any() const { return bytes == 0; }
        auto operator<=>(const Kind&) const = default;
    };

    Lease allocate(int64_t bytes, const Kind& kind);
    Lease allocate(int64_t bytes) { return allocate(bytes, Kind()); }
    bool owns(const char* data) const;

private:
    struct Chunk {
        explicit Chunk(int64_t bytes) : region(bytes), free{{region.data(), region.bytes()}} {}
        Region region;
        std::map<char*, int64_t> free; // gaps, by address
    };

    void release(char* data);

    std::vector<std::unique_ptr<Chunk>> chunks_;
    struct Taken {
        Chunk* chunk;
        int64_t bytes;
        Kind kind;
    };
    std::map<Kind, std::vector<std::pair<char*, Taken>>> kept_; // taken before
    std::unordered_map<char*, Taken> taken_;
};

} // namespace octavo
