#include <cstring>

#include "device_output.hpp"
#include "device_parallel.hpp"

namespace octavo {

namespace {

constexpr int64_t kPanelBytes = 256 << 10; // weights of a unit that meets many rows: they should stay in the second-level cache
constexpr int64_t kRowsOfUnit = 192;       // rows of a unit: their inputs should stay there too
constexpr int64_t kUnitsPerThread = 6;

} // namespace

std::unique_ptr<PackedWeight> Device::pack(nb::handle matrix) {
    Type type;
    Array in = arrays_.read_matrix(matrix, "weight", type);
    auto weight = std::make_unique<PackedWeight>(in.shape[0], in.shape[1], act_bf16_);
    PackArgs args{in.data, weight->region.data(), in.shape[0], in.shape[1], type == Type::bfloat16, act_bf16_};
    const int64_t blocks = divide_up(in.shape[0], kColumnBlock);
    run([&] { over_units(blocks, [&](int64_t block, int) { kernels_->pack(args, block, block + 1); }); });
    return weight;
}

nb::object Device::embedding(nb::handle ids, const PackedWeight& table) {
    const Array in = read(ids, "ids", Type::int32, 1);
    hold(table);
    const Size rows = rows_of(in);
    const Result out = result(Type::float32, rows, table.columns, 2);
    const EmbeddingArgs args{in.ints(), table.region.data(), out.floats(), table.rows, table.columns, table.bf16};
    issue([this, args, rows] {
        const int64_t count = rows.now();
        check_range("token id", args.ids, count, 0, args.n);
        over_rows(count, count * args.k * 4, [&](int64_t r0, int64_t r1) { kernels_->embedding(args, r0, r1); });
    });
    return out.array;
}

void Device::stage_activations(LinearArgs& args, char* staged) {
    const auto* src = static_cast<const uint16_t*>(args.x);
    const int64_t k = args.k, work = args.rows * k;
    if (kernels_->activation == Activation::fp32) {
        auto* wide = reinterpret_cast<float*>(staged);
        over_rows(args.rows, work / 2, [&](int64_t r0, int64_t r1) {
            kernels_->expand_bf16(src + r0 * k, wide + r0 * k, (r1 - r0) * k);
        });
        args.x = wide;
    } else {
        args.x_stride = divide_up(k, kDepthStep) * kDepthStep;
        auto* padded = reinterpret_cast<uint16_t*>(staged);
        over_rows(args.rows, work / 4, [&](int64_t r0, int64_t r1) {
            for (int64_t r = r0; r < r1; ++r) {
                std::memcpy(padded + r * args.x_stride, src + r * k, k * 2);
                std::memset(padded + r * args.x_stride + k, 0, (args.x_stride - k) * 2);
            }
        });
        args.x = padded;
    }
}

void Device::multiply(const LinearArgs& args, bool bf16) {
    const int64_t blocks = divide_up(args.n, kColumnBlock);
    const int64_t block_bytes = args.k * kColumnBlock * (bf16 ? 2 : 4);
    const int64_t row_chunks = divide_up(args.rows, kRowsOfUnit);
    // Enough units to share out evenly, few enough blocks in each to stay in the cache while many rows pass.
    int64_t wanted = kUnitsPerThread * pool_.size();
    int64_t group = std::clamp<int64_t>(blocks * row_chunks / wanted, 1, std::max<int64_t>(1, kPanelBytes / block_bytes));
    int64_t groups = divide_up(blocks, group);
    auto kernel = bf16 ? kernels_->linear_bf16 : kernels_->linear_f32;
    over_units(groups * row_chunks, [&](int64_t unit, int) {
        int64_t block = unit / row_chunks * group, chunk = unit % row_chunks;
        kernel(args, args.rows * chunk / row_chunks, args.rows * (chunk + 1) / row_chunks, block,
               std::min(blocks, block + group));
    });
}

nb::object Device::linear(nb::handle x, const PackedWeight& weight, nb::handle bias, nb::handle residual) {
    const Array in = read(x, "x", act(), 2);
    check(weight.bf16 == act_bf16_, "linear: the weight was packed by a device of another compute dtype");
    const Size rows = rows_of(in);
    LinearArgs args{in.data, in.shape[1], weight.region.data(), nullptr, nullptr, nullptr, 0, weight.rows, weight.columns};
    nb::object out = open_output(args, in, weight, bias, residual);
    const bool staged = weight.bf16 && (kernels_->activation == Activation::fp32 ||
                                        (kernels_->activation == Activation::bf16_padded && args.k % kDepthStep));
    const auto memory = scratch(staged ? rows.capacity * divide_up(args.k, kDepthStep) * kDepthStep * 4 : 0);
    issue([this, args, rows, bf16 = weight.bf16, stage = staged ? memory.data() : nullptr] {
        LinearArgs now = args;
        now.rows = rows.now();
        if (stage) stage_activations(now, stage);
        multiply(now, bf16);
    });
    return out;
}

} // namespace octavo
