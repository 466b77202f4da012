// Matrices in integer layouts: as they come and as the kernels read them.
#pragma once

#include <cstdint>
#include <vector>

#include "integer.hpp"
#include "weight_memory.hpp"

namespace octavo {

// A matrix [rows, groups * kGroup] as in octavo/quant/layouts.py: row-major, scales and minimums fp16.
struct IntegerSource {
    int bits;
    const uint8_t* values;    // with 4 bits two in a byte, with 8 signed
    const uint16_t* scales;   // with 6 bits two of a group
    const uint16_t* minimums; // with 4 and 5 bits
    int64_t rows, groups;
};

// The same in blocks; see integer.hpp.
struct IntegerWeight {
    IntegerWeight(int64_t rows, int64_t groups, int bits, bool gated, bool paired, WeightMemory::Slice memory)
        : rows(rows), columns(groups * kGroup), bits(bits), gated(gated), paired(paired), memory(std::move(memory)) {}

    int64_t rows, columns;
    int bits;
    bool gated;  // as PackedWeight has it
    bool paired; // as integer.hpp has it
    WeightMemory::Slice memory;
    std::vector<std::shared_ptr<Shortlist>> shortlists; // for different numbers of rows
};

// Of a row of such a layout. Throws std::invalid_argument where there is none.
int64_t groups_of_row(int bits, int64_t columns);

// Of the blocks of a matrix. Throws std::invalid_argument for sizes out of range.
int64_t integer_weight_bytes(int64_t rows, int64_t groups, int bits, bool paired = false);

// Where a source's rows come to lie: from row `first` on of a matrix of so many rows; gated, paired: as IntegerWeight has it.
struct IntegerPlace {
    char* blocks;
    int64_t rows, first = 0;
    bool gated = false, paired = false;
};

// Copies the rows [row0, row1) of a source. Others may copy other rows meanwhile.
void pack_integer_rows(const IntegerSource& source, const IntegerPlace& to, int64_t row0, int64_t row1);

// Quantizes so many groups on up to so many threads of its own.
QuantizeProblem quantize_groups(const QuantizeWeightsArgs& args, int64_t groups, const IntegerKernels* kernels, int num_threads);

} // namespace octavo
