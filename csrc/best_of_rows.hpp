// The largest of each row of a product and its column, found by several threads in parts of the columns, so that no product of
// all columns is ever written to memory. Threads keep their own; equals are decided by the column, so that it does not matter
// who found what.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels.hpp"
#include "sizes.hpp"

namespace octavo {

class BestOfRows {
public:
    // Of so many claimants, each with rows of its own. Memory of `bytes`, which it does not own. `allowed`, if not null, has
    // `words` for each row, a bit for each column: columns without it count as minus infinity, if they are sound.
    BestOfRows(char* memory, int64_t claimants, int64_t rows, const uint32_t* allowed, int64_t words)
        : claimants_(claimants), rows_(rows), stride_(whole_lines(rows)), allowed_(allowed), words_(words) {
        values_ = reinterpret_cast<float*>(memory);
        places_ = reinterpret_cast<int32_t*>(memory) + claimants * stride_;
        for (int64_t i = 0; i < claimants * stride_; ++i) {
            values_[i] = -std::numeric_limits<float>::infinity();
            places_[i] = -1;
        }
    }

    static int64_t bytes(int64_t claimants, int64_t rows) { return 2 * claimants * whole_lines(rows) * 4; }

    // For a claimant to hold so many rows and columns of a product, which lie at args.out, against what it found before.
    template <class Args> BestArgs of(int64_t claimant, const Args& args, int64_t rows, int64_t columns) const {
        const int64_t row0 = args.first_row, at = claimant * stride_ + row0;
        return {args.out, rows, args.out_stride, args.first_column, columns, values_ + at, places_ + at,
                allowed_ ? allowed_ + row0 * words_ : nullptr, words_};
    }

    // The largest that a claimant has found of a row.
    float reached(int64_t claimant, int64_t row) const { return values_[claimant * stride_ + row]; }

    // The column of each row's largest, as KernelTable::argmax tells it.
    void merge(int32_t* places) const {
        for (int64_t row = 0; row < rows_; ++row) {
            float best = values_[row];
            places[row] = places_[row];
            for (int64_t at = stride_ + row; at < claimants_ * stride_; at += stride_) {
                if (!(values_[at] > best || (values_[at] == best && places_[at] < places[row]))) continue;
                best = values_[at];
                places[row] = places_[at];
            }
            if (!std::isfinite(best)) places[row] = -1;
        }
    }

private:
    int64_t claimants_, rows_, stride_;
    float* values_;
    int32_t* places_;
    const uint32_t* allowed_;
    int64_t words_;
};

} // namespace octavo
