#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <nanobind/stl/array.h>

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
               const std::string& integer_kernels, int activation_bits, const std::string& tuning)
    : kernels_(find_kernels(isa)), integer_(find_integer_kernels(kernels_->isa, integer_kernels)),
      attention_int8_(integer_->few ? integer_->few()->attention_int8 : integer_->attention_int8),
      linear_compact_(kernels_->fix_block && integer_->linear_fixed ? integer_->linear_fixed : kernels_->linear_compact),
      tuning_(find_tuning(tuning)), act_bf16_(act_bf16), activation_levels_(activation_bits / 8),
      // Intel has no more units for all that pairs take than for multiplications.
      pairs_(activation_levels_ == 1 && tuning_ != Tuning::common && find_integer_kernels(kernels_->isa, "auto")->pairs), arrays_(bfloat16),
      pool_(num_threads >= 1 && num_threads <= 1024 ? num_threads
                                                    : throw std::invalid_argument("the number of threads must be 1 to 1024"),
            cores),
      partition_states_(pool_.size()), coming_blocks_(pool_.size()), coming_(pool_.size()), attention_scratch_(pool_.size()), logits_scratch_(pool_.size()) {
    check(activation_bits == 8 || activation_bits == 16, "activations have 8 or 16 bits");
}

void Device::begin_recording(Program& program) {
    check(program.is_of(arrays_), "the program is another device's");
    check(!program_, "a program is being recorded already");
    check(program.num_ops() == 0, "the program has been recorded already");
    program_ = &program;
}

std::vector<Array> Device::inputs_of(const Program& program, const std::vector<nb::object>& inputs) const {
    check(program.is_of(arrays_), "the program is another device's");
    check(&program != program_, "the program is still being recorded");
    return program.check_inputs(inputs);
}

void Device::start(Program& program, const std::vector<nb::object>& inputs, const Program::Cuts& cuts) {
    const std::vector<Array> arrays = inputs_of(program, inputs);
    run([&] {
        program.load(arrays, cuts);
        pool_.start([this, &program] { program.run(pool_); });
    });
    running_ = nb::find(program);
}

void Device::finish(Program& program) {
    run([] {});
    running_.reset();
    program.rethrow();
}

std::pair<std::vector<int32_t>, double> Device::go_on(Program& program, nb::handle result, const std::vector<nb::object>& inputs,
                                                      const Program::Cuts& cuts, const std::vector<int64_t>& gaps,
                                                      const std::vector<int64_t>& rows) {
    const std::vector<Array> arrays = inputs_of(program, inputs);
    check(gaps.size() == rows.size(), "go_on: there must be one row for each gap");
    const Array found = arrays_.read(result, "result", Type::int32, 1);
    const Size size = program.rows_of(found);
    std::vector<int32_t> values, wanted;
    double seconds = 0;
    run([&] {
        program.rethrow();
        values.assign(found.ints(), found.ints() + size.now());
        seconds = program.seconds();
        for (const int64_t row : rows) {
            check(row >= 0 && row < size.now(), "go_on: row out of range");
            wanted.push_back(values[row]);
        }
        program.load(arrays, cuts);
        program.fill(gaps, wanted);
        pool_.start([this, &program] { program.run(pool_); });
    });
    running_ = nb::find(program);
    return {std::move(values), seconds};
}

void Device::wait() {
    if (pool_.is_at_home()) run([] {});
    running_.reset();
}

Array Device::read(nb::handle object, const char* name, Type type, int ndim) {
    const Array array = arrays_.read(object, name, type, ndim);
    if (program_) program_->keep(object, array.data);
    return array;
}

Array Device::write(nb::handle object, const char* name, Type type, int ndim) {
    const Array array = arrays_.write(object, name, type, ndim);
    if (program_) program_->keep(object, array.data);
    return array;
}

Array Device::read_matrix(nb::handle object, const char* name, Type& type) {
    const Array array = arrays_.read_matrix(object, name, type);
    if (program_) program_->keep(object, array.data);
    return array;
}

Size Device::rows_of(const Array& array) const {
    return program_ ? program_->rows_of(array) : Size{array.shape[0], nullptr};
}

Size Device::columns_of(const Array& array) const {
    return program_ ? program_->columns_of(array.data) : Size{array.shape[1], nullptr};
}

Device::Allowed Device::read_allowed(nb::handle array, Size rows, int64_t columns) {
    if (array.is_none()) return {nullptr, {0, nullptr}, 0};
    const Array in = read(array, "allowed", Type::int32, 2);
    check(rows_of(in).same(rows), "allowed must have a row for each row of logits");
    return {reinterpret_cast<const uint32_t*>(in.data), columns_of(in), divide_up(columns, 32)};
}

ResultMemory::Lease Device::scratch(int64_t bytes, const ResultMemory::Kind& kind) {
    return program_ ? program_->memory().allocate(bytes, kind) : memory_->allocate(bytes);
}

ResultMemory::Lease Device::scratch_of_rows(Size rows, int64_t row_bytes) { return scratch(rows.capacity * row_bytes, {rows.live, row_bytes}); }

ResultMemory::Lease Device::scratch_of_threads(int64_t bytes) { return scratch(pool_.size() * bytes, {&pool_, bytes}); }

Device::Result Device::result(Type type, Size rows, int64_t columns, int ndim) {
    ResultMemory::Lease lease = scratch_of_rows(rows, columns * (type == Type::bfloat16 ? 2 : 4));
    char* data = lease.data();
    if (program_) program_->set_rows(data, rows);
    return {arrays_.view(data, type, rows.capacity, columns, ndim, std::move(lease).keep()), data};
}

nb::object Device::rms_norm(nb::handle x, nb::handle weight, float eps) {
    const Array in = read(x, "x", Type::float32, 2), w = read(weight, "weight", Type::float32, 1);
    check(w.shape[0] == in.shape[1], "rms_norm: weight must have one value for each column of x");
    const Size rows = rows_of(in);
    const Result out = result(act(), rows, in.shape[1], 2);
    const NormArgs args{in.floats(), w.floats(), out.data, in.shape[1], eps, act_bf16_};
    issue_in_lanes([this, args, rows] {
        const Range own = rows.range();
        over_rows(own, own.count() * args.size, [&](int64_t r0, int64_t r1) { kernels_->rms_norm(args, r0, r1); });
    });
    return out.array;
}

nb::object Device::silu_and_mul(nb::handle gate_up) {
    const Array in = read(gate_up, "gate_up", Type::float32, 2);
    check(in.shape[1] % 2 == 0, "silu_and_mul: gate_up must have an even number of columns");
    const Size rows = rows_of(in);
    const Result out = result(act(), rows, in.shape[1] / 2, 2);
    const GatedArgs args{in.floats(), out.data, in.shape[1] / 2, act_bf16_};
    issue_in_lanes([this, args, rows] {
        const Range own = rows.range();
        over_rows(own, 4 * own.count() * args.size, [&](int64_t r0, int64_t r1) { kernels_->silu_and_mul(args, r0, r1); });
    });
    return out.array;
}

nb::object Device::gather_rows(nb::handle x, nb::handle rows) {
    Type type;
    const Array in = read_matrix(x, "x", type), index = read(rows, "rows", Type::int32, 1);
    const Size from = rows_of(in), to = rows_of(index);
    const Result out = result(type, to, in.shape[1], 2);
    const int64_t bytes = in.shape[1] * (type == Type::bfloat16 ? 2 : 4);
    issue_in_lanes([this, bytes, from, to, source = in.data, target = out.data, ids = index.ints()] {
        const Range own = to.range(), known = from.range();
        check_range("row", ids + own.begin, own.count(), known.begin, known.end);
        over_rows(own, own.count() * bytes / 16, [&](int64_t r0, int64_t r1) {
            for (int64_t r = r0; r < r1; ++r) std::memcpy(target + r * bytes, source + ids[r] * bytes, bytes);
        });
    });
    return out.array;
}

Array Device::heads_of(nb::handle qkv, HeadShape shape, bool write_to) {
    const Array in = write_to ? write(qkv, "qkv", Type::float32, 2) : read(qkv, "qkv", Type::float32, 2);
    check(shape.num_heads > 0 && shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
          "the number of heads must be a multiple of the number of kv heads");
    check(shape.head_dim >= 8 && shape.head_dim <= 256 && shape.head_dim % 8 == 0, "head_dim must be a multiple of 8 up to 256");
    check(in.shape[1] == shape.width(), "qkv must have (num_heads + 2 * num_kv_heads) * head_dim columns");
    return in;
}

void Device::head_norm(nb::handle qkv, nb::handle weight, HeadShape shape, bool keys, float eps) {
    const Array in = heads_of(qkv, shape, true), w = read(weight, "weight", Type::float32, 1);
    check(w.shape[0] == shape.head_dim, "head_norm: weight must have head_dim values");
    const HeadsArgs args{in.floats(), in.shape[1], keys ? shape.num_heads : 0, keys ? shape.num_kv_heads : shape.num_heads,
                         shape.head_dim, w.floats(), eps, nullptr, nullptr};
    issue_in_lanes([this, args, rows = rows_of(in)] {
        const Range own = rows.range();
        over_rows(own, own.count() * args.stride, [&](int64_t r0, int64_t r1) { kernels_->head_norm(args, r0, r1); });
    });
}

void Device::rotary(nb::handle qkv, nb::handle positions, nb::handle cos_sin, HeadShape shape) {
    const Array in = heads_of(qkv, shape, true), at = read(positions, "positions", Type::int32, 1);
    const Array table = read(cos_sin, "cos_sin", Type::float32, 2);
    const Size rows = rows_of(in);
    check(table.shape[1] == shape.head_dim, "rotary: cos_sin must have head_dim columns");
    check(rows_of(at).same(rows), "rotary: there must be one position for each row of qkv");
    const HeadsArgs args{in.floats(), in.shape[1], 0, shape.num_heads + shape.num_kv_heads, shape.head_dim, nullptr, 0.0f,
                         at.ints(), table.floats()};
    issue_in_lanes([this, args, rows, end = table.shape[0]] {
        const Range own = rows.range();
        check_range("position", args.positions + own.begin, own.count(), 0, end);
        over_rows(own, own.count() * args.stride, [&](int64_t r0, int64_t r1) { kernels_->rotary(args, r0, r1); });
    });
}

nb::object Device::argmax(nb::handle logits) {
    const Array in = read(logits, "logits", Type::float32, 2);
    check(in.shape[1] > 0, "argmax: there are no logits");
    const Size rows = rows_of(in);
    const Result out = result(Type::int32, rows, 1, 1);
    issue([this, rows, x = in.floats(), n = in.shape[1], ids = out.ints()] {
        const int64_t count = rows.now();
        over_rows({0, count}, count * n, [&](int64_t r0, int64_t r1) {
            for (int64_t r = r0; r < r1; ++r) ids[r] = static_cast<int32_t>(kernels_->argmax(x + r * n, n));
        });
    });
    return out.array;
}

namespace {

// Where each row's of `count` tokens begin, and where the last one's end.
const int32_t* checked_starts(const Array& starts, int64_t rows, int64_t count, const char* error) {
    const int32_t* start = starts.ints();
    bool fit = starts.shape[0] == rows + 1 && start[0] == 0 && start[rows] == count;
    for (int64_t i = 0; fit && i < rows; ++i) fit = start[i] <= start[i + 1];
    check(fit, error);
    return start;
}

} // namespace

std::vector<RowBias> Device::read_bias(nb::handle fields, int64_t rows) {
    std::vector<RowBias> bias(rows, RowBias{nullptr, nullptr, 0});
    if (fields.is_none()) return bias;
    const auto [t, v, s] = nb::cast<std::array<nb::object, 3>>(fields);
    const Array tokens = read(t, "tokens", Type::int32, 1), values = read(v, "values", Type::float32, 1);
    check(values.shape[0] == tokens.shape[0], "bias: there must be one value for each token");
    const int32_t* start = checked_starts(read(s, "starts", Type::int32, 1), rows, tokens.shape[0],
                                          "bias: starts must rise from 0 to the number of tokens");
    for (int64_t i = 0; i < rows; ++i) {
        bias[i] = {tokens.ints() + start[i], values.floats() + start[i], start[i + 1] - start[i]};
    }
    return bias;
}

std::vector<RowPenalties> Device::read_penalties(nb::handle fields, int64_t rows) {
    std::vector<RowPenalties> penalties(rows, RowPenalties{1, 0, 0, nullptr, 0, 0});
    if (fields.is_none()) return penalties;
    const auto [r, f, p, t, s, o] = nb::cast<std::array<nb::object, 6>>(fields);
    const Array repetition = read(r, "repetition", Type::float32, 1), frequency = read(f, "frequency", Type::float32, 1);
    const Array presence = read(p, "presence", Type::float32, 1), tokens = read(t, "tokens", Type::int32, 1);
    const Array outputs = read(o, "outputs", Type::int32, 1);
    for (const Array* column : {&repetition, &frequency, &presence, &outputs}) {
        check(column->shape[0] == rows, "penalties: every column must have one value for each row of logits");
    }
    const int32_t* start = checked_starts(read(s, "starts", Type::int32, 1), rows, tokens.shape[0],
                                          "penalties: starts must rise from 0 to the number of tokens");
    const int32_t* output = outputs.ints();
    for (int64_t i = 0; i < rows; ++i) {
        check(start[i] <= output[i] && output[i] <= start[i + 1], "penalties: a row's output must be the end of its tokens");
        penalties[i] = {repetition.floats()[i], frequency.floats()[i], presence.floats()[i],
                        tokens.ints() + start[i], start[i + 1] - start[i], output[i] - start[i]};
    }
    return penalties;
}

nb::object Device::adjust(nb::handle logits, nb::handle allowed, nb::handle bias, nb::handle penalties) {
    check(!program_, "adjust cannot be recorded");
    const Array in = read(logits, "logits", Type::float32, 2);
    const int64_t n = in.shape[1];
    const Allowed bits = read_allowed(allowed, rows_of(in), n);
    const uint32_t* allowed_bits = bits.now();
    const std::vector<RowBias> gains = read_bias(bias, in.shape[0]);
    const std::vector<RowPenalties> losses = read_penalties(penalties, in.shape[0]);
    const Result out = result(Type::float32, rows_of(in), n, 2);
    run([&] {
        over_units(in.shape[0], [&](int64_t r, int thread) {
            const float* row = in.floats() + r * n;
            float* changed = out.floats() + r * n;
            if (allowed_bits && kernels_->argmax(row, n) >= 0) {
                kernels_->masked_argmax(row, allowed_bits + r * bits.words, n, changed);
            } else {
                std::memcpy(changed, row, n * sizeof(float));
            }
            octavo::adjust(gains[r], losses[r], changed, n, logits_scratch_[thread]);
        });
    });
    return out.array;
}

nb::object Device::sample(nb::handle logits, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
                          nb::handle seeds, nb::handle positions, nb::handle allowed, nb::handle bias, nb::handle penalties) {
    check(!program_, "sample cannot be recorded");
    const Array in = read(logits, "logits", Type::float32, 2);
    const Array t = read(temperature, "temperature", Type::float32, 1), k = read(top_k, "top_k", Type::int32, 1);
    const Array p = read(top_p, "top_p", Type::float32, 1), m = read(min_p, "min_p", Type::float32, 1);
    const Array s = read(seeds, "seeds", Type::uint64, 1), at = read(positions, "positions", Type::int64, 1);
    check(in.shape[1] > 0, "sample: there are no logits");
    for (const Array* column : {&t, &k, &p, &m, &s, &at}) {
        check(column->shape[0] == in.shape[0], "sample: every parameter must have one value for each row of logits");
    }
    const Allowed bits = read_allowed(allowed, rows_of(in), in.shape[1]);
    const uint32_t* allowed_bits = bits.now();
    const std::vector<RowBias> gains = read_bias(bias, in.shape[0]);
    const std::vector<RowPenalties> losses = read_penalties(penalties, in.shape[0]);
    const Result out = result(Type::int32, rows_of(in), 1, 1);
    auto* seed = reinterpret_cast<const uint64_t*>(s.data);
    auto* position = reinterpret_cast<const int64_t*>(at.data);
    run([&] {
        over_units(in.shape[0], [&](int64_t r, int thread) {
            const uint32_t* mine = allowed_bits ? allowed_bits + r * bits.words : nullptr;
            const DrawArgs args{in.floats() + r * in.shape[1], in.shape[1], mine, t.floats()[r], k.ints()[r], p.floats()[r],
                                m.floats()[r], seed[r], position[r], gains[r], losses[r]};
            out.ints()[r] = draw(*kernels_, args, logits_scratch_[thread]);
        });
    });
    return out.array;
}

nb::tuple Device::top_logprobs(nb::handle logits, nb::handle chosen, int64_t num) {
    check(!program_, "top_logprobs cannot be recorded");
    const Array in = read(logits, "logits", Type::float32, 2), c = read(chosen, "chosen", Type::int32, 1);
    check(in.shape[1] > 0, "top_logprobs: there are no logits");
    check(c.shape[0] == in.shape[0], "top_logprobs: there must be one chosen token for each row of logits");
    check(num >= 0 && num <= in.shape[1], "top_logprobs: number of log-probabilities out of range");
    check_range("chosen token", c.ints(), c.shape[0], 0, in.shape[1]);
    const Size rows = rows_of(in);
    const Result logprob = result(Type::float32, rows, 1, 1), rank = result(Type::int32, rows, 1, 1);
    const Result ids = result(Type::int32, rows, num, 2), logprobs = result(Type::float32, rows, num, 2);
    run([&] {
        over_units(in.shape[0], [&](int64_t r, int thread) {
            TopLogprobsArgs args{in.floats() + r * in.shape[1],
                                 in.shape[1],
                                 c.ints()[r],
                                 num,
                                 logprob.floats() + r,
                                 rank.ints() + r,
                                 ids.ints() + r * num,
                                 logprobs.floats() + r * num};
            octavo::top_logprobs(*kernels_, args, logits_scratch_[thread]);
        });
    });
    return nb::make_tuple(logprob.array, rank.array, ids.array, logprobs.array);
}

} // namespace octavo
