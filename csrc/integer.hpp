// What the translation units of integer products and the rest share; plain data like kernels.hpp, and for the same reason.
//
// Weights lie in blocks of 32 outputs, one stream a block: [n / 32][group of 32 inputs][2 halves of 16 outputs][lines], then the
// group's scales, and with less than 8 bits as many minimums, all fp16. A line is 64 bytes: 4 inputs of 16 outputs, an output's
// side by side; a half has as many lines as weights have bits. With 8 bits bytes hold value + 128. With fewer, low halves of the
// first four lines are the low bits of the inputs of line i, high halves those of line i + 4. With 5 bits a last line has the
// fifth bits: bit i of a byte is that of line i. With 6 bits two more have the upper two: bits 2i and 2i + 1 of the first those of
// line i, of the second those of line i + 4; values are 32 too large, there are no minimums but two scales, one for 16 inputs each.
//
// Activations are quantized per row and group to a record: 32 int8, the scale, and what undoes an offset of the weights or
// multiplies their minimum. That is scale * sum of the values as a float with minimums, -128 * sum as an int32 with 8 bits, with 6
// -32 * sum of the first 16 and of the others. In 16 bits a value is 255 * high + low, two levels of bytes: the first 32 are the
// high ones, and 32 more at the end the low ones, none of which is -128. Records lie in the order in which a tile of rows reads
// them: [tile][group][row of the tile].
//
// Where kernels have them (IntegerKernels::pairs), weights of 4 bits that meet one level lie in pairs of groups whose scales are whole
// numbers, so that one instruction scales two dots of 16 bits; see docs/decisions/0076. The lines of both groups are followed by S,
// a scale of each of them for each output, side by side, then by M, as many minimums, and all groups by the outputs' units, floats:
// a scale is S units, a minimum, of values that are 8 smaller, 8 M. Behind all records are the rows' units, floats. A group's scale is
// r / 2^15 of its row's. The first record of a pair has kFlipped - 8 * sum and the r of both groups, the second one -8 * sum and
// 8 * sum * r / 2^15 of both.
//
// Where a product need not be that of certain numbers (shortlist.hpp), spans of several groups share a scale on both sides, with 8
// bits and one level, so that dots become floats once for a span. A span's last record has the offset of all.
//
// All integer arithmetic is exact, floats are combined in one order by fused operations: the same bits with and without
// dot product instructions, for any number of rows.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ceilings.hpp"
#include "even_tiles.hpp"
#include "half.hpp"
#include "pieces.hpp"

namespace octavo {

constexpr int kGroup = 32;          // inputs that share a scale
constexpr int kLine = 64;           // bytes
constexpr int kIntegerColumns = 32; // outputs of a block

// The groups of a product in spans: bit g is set if g is the last one of its span. None set: each group is by itself.
using SpanEnds = uint64_t;
constexpr int64_t kGroupsWithSpans = 64; // at most
constexpr int64_t kLongestSpan = 16;     // groups: their dots are exact as floats
constexpr bool ends_span(SpanEnds ends, int64_t group) { return !ends || ends >> group & 1; }
// To all groups of a span the largest that one of them has. Never a function of its own, as units of several instruction sets use it.
template <class T> inline __attribute__((always_inline)) void share_largest(T* of_groups, int64_t groups, SpanEnds ends) {
    for (int64_t first = 0, g = 0; g < groups; ++g) {
        of_groups[first] = of_groups[g] > of_groups[first] ? of_groups[g] : of_groups[first];
        if (!ends_span(ends, g)) continue;
        for (const T most = of_groups[first]; first <= g; ++first) of_groups[first] = most;
    }
}

// From so many rows on, a tile of 16 rows is full; below, the dots that it computes in vain cost more than it saves.
constexpr int kManyRows = 16;

// A block's group of weights with so many bits.
constexpr int64_t group_bytes(int bits) { return 2 * bits * kLine + (bits == 8 ? 1 : 2) * kIntegerColumns * 2; }
// In a group: where the bytes of an output's first line are, and its first scale.
constexpr int64_t place_of_column(int bits, int64_t column) { return column / 16 * bits * kLine + column % 16 * 4; }
constexpr int64_t scale_of_column(int bits, int64_t column) { return 2 * bits * kLine + column * 2; }
// In a pair of groups of 4 bits: where the second one's lines are, and an output's scales, one for each group.
constexpr int64_t kLinesOfFour = 8 * kLine;
constexpr int64_t scales_of_pair(int64_t column) { return 2 * kLinesOfFour + column * 4; }
// Of a row's group of activations, for weights with so many bits. Where there are low bytes, they are behind a record of one level.
constexpr int record_bytes(int bits, int levels) { return levels * kGroup + (bits == 6 ? 12 : 8); }
// Of so many rows and groups.
constexpr int64_t records_bytes(int64_t rows, int64_t groups, int bits, int levels, bool paired) {
    return rows * (groups * record_bytes(bits, levels) + (paired ? 4 : 0));
}
// Of a block of so many groups.
constexpr int64_t integer_block_bytes(int64_t groups, int bits, bool paired) {
    return groups * group_bytes(bits) + (paired ? kIntegerColumns * 4 : 0);
}
// Of pairs. Two products of 16 bits with a scale, and two with a minimum, fit 32 bits.
constexpr int kMostScale = 16383, kWholeScale = 32767, kTooLarge = 8, kFlipped = 0x8000;
// The largest value of a group of activations.
constexpr float largest_value(int levels) { return levels == 2 ? 255.0f * 127 + 127 : 127.0f; }
// A length as measured, of computed squares: no less than it is. A square is lost where a number is below 1e-19, and rounding takes
// less than a thousandth.
constexpr float kLengthTimes = 1.001f, kLengthMore = 1e-16f;
// How much too large values lie in memory, where there are no minimums.
template <int kBits> constexpr float kOffset = kBits == 8 ? 128.0f : 32.0f;
// Where kernels of weights with so many bits are in tables of them.
constexpr int kBitsOf[] = {4, 5, 6, 8};
constexpr int index_of_bits(int bits) { return bits == 8 ? 3 : bits - 4; }

// Of a group's inputs.
struct HalfSums {
    int32_t first, second;
};

struct IntegerLinearArgs {
    const char* x = nullptr;         // records
    const char* weight = nullptr;    // blocks
    const float* bias = nullptr;     // may be null
    const float* residual = nullptr; // may be null, may be out; rows are as far apart as those of out
    float* out = nullptr;
    int64_t rows = 0, n = 0, groups = 0, tiles = 0;
    int bits = 0;
    int64_t out_stride = 0;                  // elements
    int levels = 0;                          // of activations
    int64_t first_row = 0, first_column = 0; // what lies at `out`
    Reading reading{}; // of this thread
    Pieces* pieces = nullptr;
    Tuning tuning = Tuning::common;
    SpanEnds ends = 0;
    bool paired = false;

    int64_t block_bytes() const { return integer_block_bytes(groups, bits, paired); }
};

struct QuantizeArgs {
    const void* x = nullptr; // [rows, groups * kGroup]
    char* out = nullptr;     // records
    int64_t rows = 0, groups = 0, tiles = 0;
    bool x_bf16 = false;
    int bits = 0; // of the weights
    int levels = 0;
    SpanEnds ends = 0;
    bool paired = false;
};

struct IntegerEmbeddingArgs {
    const int32_t* ids;
    const char* table; // blocks
    float* out;
    int64_t groups;
    int bits;
};

// Groups of kGroup weights in a row -> the layouts of octavo/quant/layouts.py.
struct QuantizeWeightsArgs {
    const void* x;
    uint8_t* values;
    uint16_t* scales;
    uint16_t* minimums; // null with 8 bits
    bool x_bf16;
    int bits; // 4, 5 or 8
    const float* largest = nullptr; // with 8 bits: null, or of each group the magnitude that its largest value stands for
};

enum class QuantizeProblem { none, not_finite, too_large };

struct AttentionArgs; // in kernels.hpp
struct AttentionUnit;
struct LinearArgs;

struct IntegerKernels {
    const char* name;
    // Null, or the kernels that are to be used instead, with the same bits, for fewer than kManyRows rows.
    const IntegerKernels* (*few)();
    // Up to so many rows (one fewer with 16-bit activations) a product waits for memory, so 5-bit weights are faster than 8-bit
    // ones.
    int64_t rows_at_memory;
    int64_t rows_of_part; // of one level, of two half as many: as in KernelTable

    int64_t (*tiles)(int64_t rows, int bits, int levels, bool spans); // that so many rows are cut into, as equal as possible
    void (*linear)(const IntegerLinearArgs&, int64_t tile0, int64_t tile1, int64_t block0, int64_t block1);
    void (*quantize)(const QuantizeArgs&, int64_t tile0, int64_t tile1);
    // Of quantized rows, their numbers times `times`: their lengths, and those of what quantizing has changed; no less than they are.
    void (*measure)(const QuantizeArgs&, const float* times, float* lengths, float* changes, int64_t tile0, int64_t tile1);
    void (*embedding)(const IntegerEmbeddingArgs&, int64_t row0, int64_t row1);
    // What is written where there is a problem means nothing.
    QuantizeProblem (*quantize_weights)(const QuantizeWeightsArgs&, int64_t group0, int64_t group1);
    const PeakKernel* int8_peak;
    // Null, or KernelTable::attention of keys and values in int8, faster than theirs that these run beside.
    bool (*attention_int8)(const AttentionArgs&, const AttentionUnit*, int64_t count, float* scratch) = nullptr;
    // Null, or KernelTable::linear_compact in whole numbers.
    void (*linear_fixed)(const LinearArgs&, int64_t row0, int64_t row1, int64_t block0, int64_t block1) = nullptr;
    const PeakKernel* pairs_peak = nullptr; // of linear_fixed
    bool pairs = false;                     // of groups, too
};

const IntegerKernels* integer_generic();
const IntegerKernels* integer_amx_emulated();
#ifdef OCTAVO_HAVE_INTEGER_AVX2
const IntegerKernels* integer_avx2();
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX2_VNNI
const IntegerKernels* integer_avx2_vnni();
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX512
const IntegerKernels* integer_avx512();
#endif
#ifdef OCTAVO_HAVE_INTEGER_AVX512_VNNI
const IntegerKernels* integer_avx512_vnni();
#endif
#ifdef OCTAVO_HAVE_INTEGER_AMX
const IntegerKernels* integer_amx();
#endif

} // namespace octavo
