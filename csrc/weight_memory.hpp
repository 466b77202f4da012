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
    // Memory aligned to a cache line, a part of a region or of something else, which it keeps alive.
    class Slice {
    public:
        Slice(std::shared_ptr<const void> owner, char* data, int64_t bytes) : owner_(std::move(owner)), data_(data), bytes_(bytes) {}

        char* data() const { return data_; }
        int64_t bytes() const { return bytes_; }

    private:
        friend WeightMemory;
        std::shared_ptr<const void> owner_;
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

// Of the blocks of a matrix of which there is memory, so that sizes do not overflow.
int64_t packed_weight_bytes(int64_t rows, int64_t columns, bool bf16);

// A matrix [rows, columns] packed for linear and embedding; see kernels_linear.hpp.
struct PackedWeight {
    PackedWeight(int64_t rows, int64_t columns, bool bf16, bool gated, WeightMemory::Slice memory)
        : rows(rows), columns(columns), bf16(bf16), gated(gated), memory(std::move(memory)) {}
    // Has `compact` point to what follows it.
    void make_compact();

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
    std::unique_ptr<Compact> compact;   // null if `memory` holds no such

    std::vector<std::shared_ptr<Shortlist>> shortlists; // one, if any
};

} // namespace octavo
