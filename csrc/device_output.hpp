// Where the result of a matrix product goes. Included by the parts of Device that multiply.
#pragma once

#include "device.hpp"

namespace octavo {

template <class Args, class Weight>
nb::object Device::open_output(Args& args, const Array& in, const Weight& weight, nb::handle bias, nb::handle residual) {
    check(in.shape[1] == weight.columns, "linear: x must have one column for each input of the weight");
    if (!bias.is_none()) {
        Array b = arrays_.read(bias, "bias", Type::float32, 1);
        check(b.shape[0] == weight.rows, "linear: bias must have one value for each output of the weight");
        args.bias = b.floats();
    }
    if (!residual.is_none()) {
        Array r = arrays_.write(residual, "residual", Type::float32, 2);
        check(r.shape[0] == in.shape[0] && r.shape[1] == weight.rows, "linear: residual must have the shape of the result");
        args.residual = r.floats();
        // The result takes over the residual's memory, unless x lies there too and is still to be read.
        const char* end = in.data + in.size() * (act_bf16_ ? 2 : 4);
        if (r.data >= end || r.data + r.size() * 4 <= in.data) {
            args.out = r.floats();
            return nb::borrow(residual);
        }
    }
    char* data;
    nb::object out = result(Type::float32, in.shape[0], weight.rows, 2, data);
    args.out = reinterpret_cast<float*>(data);
    return out;
}

} // namespace octavo
