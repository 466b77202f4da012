// Memory of weights: zero bytes cut one after another from large regions on huge pages, so that small matrices lie on them too.
// What is cut is never handed out again; a region goes when its last slice does. Used with the interpreter's lock held only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace octavo {

class WeightMemory {
public:
    // A part of a region, aligned to a cache line, that keeps the region alive.
    class Slice {
    public:
        Slice(std::shared_ptr<const Region> region, int64_t begin, int64_t bytes)
            : region_(std::move(region)), data_(region_->data() + begin), bytes_(bytes) {}

        char* data() const { return data_; }
        int64_t bytes() const { return bytes_; }

    private:
        friend WeightMemory;
        std::shared_ptr<const Region> region_;
        char* data_;
        int64_t bytes_;
    };

    // Throws std::bad_alloc.
    Slice take(int64_t bytes);
    // Shortens a slice; what is left of it is cut again, unless something was cut since.
    void shorten(Slice& slice, int64_t bytes);

private:
    std::shared_ptr<const Region> region_; // that slices are being cut from
    int64_t used_ = 0;
};

struct Shortlist;

// A matrix [rows, columns] packed for linear and embedding; see kernels_linear.hpp.
struct PackedWeight {
    // Of a matrix that is in memory, so that sizes do not overflow.
    PackedWeight(int64_t rows, int64_t columns, bool bf16, bool gated, WeightMemory& from);

    int64_t rows, columns;
    bool bf16;
    bool gated; // gates and what they let through, in turns
    WeightMemory::Slice memory;

    // Of compact blocks, if `memory` holds them.
    std::vector<uint8_t> highs;
    std::vector<uint32_t> exceptions;
    std::vector<int64_t> first_exceptions;
    std::vector<uint8_t> exponents; // where they are multiplied in whole numbers
    std::vector<float> scales, errors;
    std::unique_ptr<Compact> compact;

    std::vector<std::shared_ptr<Shortlist>> shortlists; // one, if any
};

} // namespace octavo
