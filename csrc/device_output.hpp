// Where the result of a matrix product goes. Included by the parts of Device that multiply.
#pragma once

#include "device.hpp"

namespace octavo {

template <class Args, class Weight>
nb::object Device::open_output(Args& args, const Array& in, const Weight& weight, nb::handle bias, nb::handle residual, const Into& into) {
    hold(weight);
    check(in.shape[1] == weight.columns, "linear: x must have one column for each input of the weight");
    if (!bias.is_none()) {
        Array b = read(bias, "bias", Type::float32, 1);
        check(b.shape[0] == weight.rows, "linear: bias must have one value for each output of the weight");
        args.bias = b.floats();
    }
    if (!into.result.is_none()) {
        const Array whole = write(into.result, "into", Type::float32, 2);
        check(rows_of(whole).same(rows_of(in)) && into.column >= 0 && into.column <= whole.shape[1] - weight.rows,
              "linear: the result must have a row for each of x and the columns of the weight");
        args.out = whole.floats() + into.column;
        args.out_stride = whole.shape[1];
        if (residual.is_none()) return nb::borrow(into.result);
        const Array r = read(residual, "residual", Type::float32, 2);
        check(r.shape[1] == whole.shape[1] && rows_of(r).same(rows_of(in)), "linear: residual must have the shape of the result");
        args.residual = r.floats() + into.column;
        return nb::borrow(into.result);
    }
    if (!residual.is_none()) {
        Array r = write(residual, "residual", Type::float32, 2);
        check(r.shape[1] == weight.rows && rows_of(r).same(rows_of(in)), "linear: residual must have the shape of the result");
        args.residual = r.floats();
        // The result takes over the residual's memory, unless x lies there too and is still to be read.
        const char* end = in.data + in.size() * act_bytes();
        if (r.data >= end || r.data + r.size() * 4 <= in.data) {
            args.out = r.floats();
            return nb::borrow(residual);
        }
    }
    Result out = result(Type::float32, rows_of(in), weight.rows, 2);
    args.out = out.floats();
    return out.array;
}

template <class Weight>
GatedBlockArgs Device::open_gates(const Array& in, const Weight& weight, nb::handle bias, nb::object& out) {
    hold(weight);
    check(weight.gated, "gated_linear: the weight was packed for linear");
    check(in.shape[1] == weight.columns, "gated_linear: x must have one column for each input of the weight");
    const int64_t size = weight.rows / 2;
    const Result into = result(act(), rows_of(in), size, 2);
    out = into.array;
    GatedBlockArgs gate{nullptr, nullptr, into.data, 0, size, size, act_bf16_};
    if (!bias.is_none()) {
        const Array b = read(bias, "bias", Type::float32, 1);
        check(b.shape[0] == weight.rows, "gated_linear: bias must have one value for each output of the weight");
        gate.bias = b.floats();
    }
    return gate;
}

// Of all gates those of the rows [row0, row1) whose sums are given, from a column on.
inline GatedBlockArgs block_of(const GatedBlockArgs& gate, const float* sums, int64_t row0, int64_t row1, int64_t column) {
    GatedBlockArgs block = gate;
    block.sums = sums;
    block.rows = row1 - row0;
    if (gate.bias) block.bias = gate.bias + column;
    block.out = static_cast<char*>(gate.out) + (row0 * gate.out_stride + column) * (gate.out_bf16 ? 2 : 4);
    return block;
}

// Of all gates those of the rows from one on.
inline GatedBlockArgs from_row(GatedBlockArgs gate, int64_t row) {
    gate.out = static_cast<char*>(gate.out) + row * gate.out_stride * (gate.out_bf16 ? 2 : 4);
    return gate;
}

inline void check_gates(int64_t rows, bool gated) {
    check(!gated || rows % (2 * kColumnBlock) == 0, "a gated weight must have a multiple of 64 rows");
}

// Where a row of a gated weight lies: blocks of gates, its first half, take turns with those of what they let through.
inline int64_t place_of_gated(int64_t row, int64_t rows) {
    const int64_t side = row >= rows / 2, own = row - side * (rows / 2);
    return (own / kColumnBlock * 2 + side) * kColumnBlock + own % kColumnBlock;
}

} // namespace octavo
