#include <cstring>
#include <stdexcept>

#include "cpu_features.hpp"
#include "device_parallel.hpp"

namespace octavo {

void check(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

void check_range(const char* name, const int32_t* values, int64_t count, int64_t low, int64_t high) {
    int32_t least = count ? values[0] : 0, most = least;
    for (int64_t i = 0; i < count; ++i) {
        least = std::min(least, values[i]);
        most = std::max(most, values[i]);
    }
    if (count && (least < low || most >= high)) {
        throw std::invalid_argument(std::string(name) + " out of range: values must be in [" + std::to_string(low) + ", " +
                                    std::to_string(high) + "), found " + std::to_string(least < low ? least : most));
    }
}

Device::Device(const std::string& isa, int num_threads, const std::vector<int>& cores, bool act_bf16, nb::handle bfloat16,
               const std::string& integer_kernels)
    : kernels_(find_kernels(isa)), integer_(find_integer_kernels(kernels_->isa, integer_kernels)), act_bf16_(act_bf16), arrays_(bfloat16),
      pool_(num_threads >= 1 && num_threads <= 1024 ? num_threads
                                                    : throw std::invalid_argument("the number of threads must be 1 to 1024"),
            cores),
      attention_scratch_(pool_.size()), logits_scratch_(pool_.size()) {}

nb::object Device::result(Type type, int64_t rows, int64_t columns, int ndim, char*& data) {
    data = arena_.allocate(rows * columns * (type == Type::bfloat16 ? 2 : 4));
    return arrays_.view(data, type, rows, columns, ndim, arena_.owner());
}

nb::object Device::rms_norm(nb::handle x, nb::handle weight, float eps) {
    Array in = arrays_.read(x, "x", Type::float32, 2), w = arrays_.read(weight, "weight", Type::float32, 1);
    check(w.shape[0] == in.shape[1], "rms_norm: weight must have one value for each column of x");
    char* data;
    nb::object out = result(act(), in.shape[0], in.shape[1], 2, data);
    NormArgs args{in.floats(), w.floats(), data, in.shape[1], eps, act_bf16_};
    over_rows(in.shape[0], in.size(), [&](int64_t r0, int64_t r1) { kernels_->rms_norm(args, r0, r1); });
    return out;
}

nb::object Device::silu_and_mul(nb::handle gate_up) {
    Array in = arrays_.read(gate_up, "gate_up", Type::float32, 2);
    check(in.shape[1] % 2 == 0, "silu_and_mul: gate_up must have an even number of columns");
    char* data;
    nb::object out = result(act(), in.shape[0], in.shape[1] / 2, 2, data);
    GatedArgs args{in.floats(), data, in.shape[1] / 2, act_bf16_};
    over_rows(in.shape[0], 2 * in.size(), [&](int64_t r0, int64_t r1) { kernels_->silu_and_mul(args, r0, r1); });
    return out;
}

nb::object Device::gather_rows(nb::handle x, nb::handle rows) {
    Type type;
    Array in = arrays_.read_matrix(x, "x", type), index = arrays_.read(rows, "rows", Type::int32, 1);
    check_range("row", index.ints(), index.shape[0], 0, in.shape[0]);
    char* data;
    nb::object out = result(type, index.shape[0], in.shape[1], 2, data);
    int64_t bytes = in.shape[1] * (type == Type::bfloat16 ? 2 : 4);
    over_rows(index.shape[0], index.shape[0] * in.shape[1] / 4, [&](int64_t r0, int64_t r1) {
        for (int64_t r = r0; r < r1; ++r) std::memcpy(data + r * bytes, in.data + index.ints()[r] * bytes, bytes);
    });
    return out;
}

Array Device::heads_of(nb::handle qkv, HeadShape shape, bool write) const {
    Array in = write ? arrays_.write(qkv, "qkv", Type::float32, 2) : arrays_.read(qkv, "qkv", Type::float32, 2);
    check(shape.num_heads > 0 && shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
          "the number of heads must be a multiple of the number of kv heads");
    check(shape.head_dim >= 8 && shape.head_dim <= 256 && shape.head_dim % 8 == 0, "head_dim must be a multiple of 8 up to 256");
    check(in.shape[1] == shape.width(), "qkv must have (num_heads + 2 * num_kv_heads) * head_dim columns");
    return in;
}

void Device::head_norm(nb::handle qkv, nb::handle weight, HeadShape shape, bool keys, float eps) {
    Array in = heads_of(qkv, shape, true), w = arrays_.read(weight, "weight", Type::float32, 1);
    check(w.shape[0] == shape.head_dim, "head_norm: weight must have head_dim values");
    HeadsArgs args{in.floats(), in.shape[1], keys ? shape.num_heads : 0, keys ? shape.num_kv_heads : shape.num_heads,
                   shape.head_dim, w.floats(), eps, nullptr, nullptr};
    over_rows(in.shape[0], in.size(), [&](int64_t r0, int64_t r1) { kernels_->head_norm(args, r0, r1); });
}

void Device::rotary(nb::handle qkv, nb::handle positions, nb::handle cos_sin, HeadShape shape) {
    Array in = heads_of(qkv, shape, true), at = arrays_.read(positions, "positions", Type::int32, 1);
    Array table = arrays_.read(cos_sin, "cos_sin", Type::float32, 2);
    check(table.shape[1] == shape.head_dim, "rotary: cos_sin must have head_dim columns");
    check(at.shape[0] == in.shape[0], "rotary: there must be one position for each row of qkv");
    check_range("position", at.ints(), at.shape[0], 0, table.shape[0]);
    HeadsArgs args{in.floats(), in.shape[1], 0, shape.num_heads + shape.num_kv_heads, shape.head_dim, nullptr, 0.0f,
                   at.ints(), table.floats()};
    over_rows(in.shape[0], in.size(), [&](int64_t r0, int64_t r1) { kernels_->rotary(args, r0, r1); });
}

nb::object Device::argmax(nb::handle logits) {
    Array in = arrays_.read(logits, "logits", Type::float32, 2);
    check(in.shape[1] > 0, "argmax: there are no logits");
    char* data;
    nb::object out = result(Type::int32, in.shape[0], 1, 1, data);
    auto* ids = reinterpret_cast<int32_t*>(data);
    over_rows(in.shape[0], in.size(), [&](int64_t r0, int64_t r1) {
        for (int64_t r = r0; r < r1; ++r) {
            ids[r] = static_cast<int32_t>(kernels_->argmax(in.floats() + r * in.shape[1], in.shape[1]));
        }
    });
    return out;
}

nb::object Device::sample(nb::handle logits, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
                          nb::handle seeds, nb::handle positions) {
    Array in = arrays_.read(logits, "logits", Type::float32, 2);
    Array t = arrays_.read(temperature, "temperature", Type::float32, 1), k = arrays_.read(top_k, "top_k", Type::int32, 1);
    Array p = arrays_.read(top_p, "top_p", Type::float32, 1), m = arrays_.read(min_p, "min_p", Type::float32, 1);
    Array s = arrays_.read(seeds, "seeds", Type::uint64, 1), at = arrays_.read(positions, "positions", Type::int64, 1);
    check(in.shape[1] > 0, "sample: there are no logits");
    for (const Array* column : {&t, &k, &p, &m, &s, &at}) {
        check(column->shape[0] == in.shape[0], "sample: every parameter must have one value for each row of logits");
    }
    char* data;
    nb::object out = result(Type::int32, in.shape[0], 1, 1, data);
    auto* ids = reinterpret_cast<int32_t*>(data);
    auto* seed = reinterpret_cast<const uint64_t*>(s.data);
    auto* position = reinterpret_cast<const int64_t*>(at.data);
    over_units(in.shape[0], [&](int64_t r, int thread) {
        DrawArgs args{in.floats() + r * in.shape[1], in.shape[1], t.floats()[r], k.ints()[r], p.floats()[r], m.floats()[r],
                      seed[r], position[r]};
        ids[r] = draw(*kernels_, args, logits_scratch_[thread]);
    });
    return out;
}

nb::tuple Device::top_logprobs(nb::handle logits, nb::handle chosen, int64_t num) {
    Array in = arrays_.read(logits, "logits", Type::float32, 2), c = arrays_.read(chosen, "chosen", Type::int32, 1);
    check(in.shape[1] > 0, "top_logprobs: there are no logits");
    check(c.shape[0] == in.shape[0], "top_logprobs: there must be one chosen token for each row of logits");
    check(num >= 0 && num <= in.shape[1], "top_logprobs: number of log-probabilities out of range");
    check_range("chosen token", c.ints(), c.shape[0], 0, in.shape[1]);
    char *logprob, *rank, *ids, *logprobs;
    nb::object out[4] = {result(Type::float32, in.shape[0], 1, 1, logprob), result(Type::int32, in.shape[0], 1, 1, rank),
                         result(Type::int32, in.shape[0], num, 2, ids), result(Type::float32, in.shape[0], num, 2, logprobs)};
    over_units(in.shape[0], [&](int64_t r, int thread) {
        TopLogprobsArgs args{in.floats() + r * in.shape[1],
                             in.shape[1],
                             c.ints()[r],
                             num,
                             reinterpret_cast<float*>(logprob) + r,
                             reinterpret_cast<int32_t*>(rank) + r,
                             reinterpret_cast<int32_t*>(ids) + r * num,
                             reinterpret_cast<float*>(logprobs) + r * num};
        octavo::top_logprobs(*kernels_, args, logits_scratch_[thread]);
    });
    return nb::make_tuple(out[0], out[1], out[2], out[3]);
}

} // namespace octavo
