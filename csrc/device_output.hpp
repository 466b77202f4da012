// Where the result of a matrix product goes. Included by the parts of Device that multiply.
#pragma once

#include "device.hpp"

namespace octavo {

template <class Args, class Weight>
nb::object Device::open_output(Args& args, const Array& in, const Weight& weight, nb::handle bias, nb::handle residual) {
    hold(weight);
    check(in.shape[1] == weight.columns, "linear: x must have one column for each input of the weight");
    if (!bias.is_none()) {
        Array b = read(bias, "bias", Type::float32, 1);
        check(b.shape[0] == weight.rows, "linear: bias must have one value for each output of the weight");
        args.bias = b.floats();
    }
    if (!residual.is_none()) {
        Array r = write(residual, "residual", Type::float32, 2);
        check(r.shape[1] == weight.rows && rows_of(r).same(rows_of(in)), "linear: residual must have the shape of the result");
        args.residual = r.floats();
        // The result takes over the residual's memory, unless x lies there too and is still to be read.
        const char* end = in.data + in.size() * (act_bf16_ ? 2 : 4);
        if (r.data >= end || r.data + r.size() * 4 <= in.data) {
            args.out = r.floats();
            return nb::borrow(residual);
        }
    }
    Result out = result(Type::float32, rows_of(in), weight.rows, 2);
    args.out = out.floats();
    return out.array;
}

} // namespace octavo
