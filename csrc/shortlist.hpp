// What lets the largest column of each row of a product be found without computing all columns as they are.
//
// First the product is computed roughly, with fewer bits for x and w, and with it how far off each column can be. Then only blocks
// of columns that may hold the largest are computed as ever, so that the result is the same, bit for bit. With x' and w' for what
// fewer bits make of x and w, |xw - x'w'| <= |x| |w - w'| + |x - x'| |w'| (Cauchy and Schwarz); what is lost by rounding sums comes
// to that. All lengths are measured, none is estimated. They are lengths of numbers of w times sizes of inputs, and of x divided by
// them, which holds for any sizes: an input that is large in all columns, as few are, would else count for more than it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "integer_weight.hpp"
#include "sizes.hpp"

namespace octavo {

struct Shortlist {
    static constexpr float kLongest = 1e18f; // products of such lengths are far from infinity

    Shortlist(int64_t columns, const std::vector<float>& sizes)
        : per_input(round_up(columns, kIntegerColumns)), per_error(per_input.size()) {
        for (const float size : sizes) {
            inverse_sizes.push_back(1 / size);
            largest_inverse_size = std::max(largest_inverse_size, inverse_sizes.back());
        }
    }

    std::unique_ptr<IntegerWeight> rough;    // null: the weight itself
    SpanEnds ends = 0;                       // of the rough product; if there are any, its inputs are in an order of their own:
    std::vector<int32_t> order;
    int levels = 1;                          // of activations in the rough product
    std::vector<float> inverse_sizes;        // of inputs in their order
    float largest_inverse_size = 0;
    std::vector<float> per_input, per_error; // as PromiseArgs has them
    // With fewer rows, or more, the exact product is as fast.
    int64_t least_rows = 1, most_rows = std::numeric_limits<int64_t>::max();
    bool takes(int64_t rows) const { return rows >= least_rows && rows <= most_rows; }

    // Where columns are all alike, too many blocks may hold the largest. After that the next products are exact at once; the more
    // often it happens, the more of them.
    int64_t pause = 0, next_pause = 1;

    int64_t settled = 0, given_up = 0; // products
};

// The rows [row0, row1) of a matrix with its columns in that order.
template <class T> void put_in_order(const T* from, const std::vector<int32_t>& order, int64_t row0, int64_t row1, T* to) {
    const auto columns = static_cast<int64_t>(order.size());
    for (int64_t row = row0; row < row1; ++row) {
        for (int64_t i = 0; i < columns; ++i) to[row * columns + i] = from[row * columns + order[i]];
    }
}

// Numbers of a product by a shortlist, in memory of `bytes` that it does not own.
struct Promises {
    Promises() = default;
    Promises(char* memory, int64_t rows, int64_t blocks, int threads) : rows(rows), blocks(blocks), stride(whole_lines(rows)), row_stride(apart(blocks)) {
        lengths = reinterpret_cast<float*>(memory);
        changes = lengths + stride;
        reached = changes + stride;
        floors = reached + stride;
        tops = floors + threads * stride;
    }

    static int64_t bytes(int64_t rows, int64_t blocks, int threads) { return 4 * ((3 + threads) * whole_lines(rows) + rows * apart(blocks)); }

    int64_t rows = 0, blocks = 0, stride = 0, row_stride = 0;
    float *lengths = nullptr, *changes = nullptr; // of each row, as PromiseArgs has them
    float* reached = nullptr;                     // of each row: what a column of it is
    float* floors = nullptr;                      // [threads][stride]
    float* tops = nullptr;                        // [rows][row_stride], of which `blocks` count

private:
    static int64_t apart(int64_t blocks) { return whole_lines(blocks) | 16; } // an odd number of them: rows share no places in caches
};

} // namespace octavo
