#include <cstring>

#include "device_output.hpp"
#include "device_parallel.hpp"
#include "spans.hpp"

namespace octavo {

namespace {

constexpr int64_t kPanelBytes = 256 << 10; // weights that meet all rows before others do: the second-level cache should hold them
constexpr int64_t kChunkBytes = 256 << 10; // inputs of rows that meet those weights: they should stay there too
constexpr int64_t kLeastRows = 192;        // of a chunk: below, weights are fetched too often
constexpr int64_t kFewRows = 4;            // below, kernels multiply two blocks at once

// Units of a product: a chunk of rows times a block of columns. Blocks change fastest, within a panel; then chunks; then
// panels.
struct Cut {
    Cut(const LinearArgs& args, int64_t element_bytes)
        : blocks(divide_up(args.n, kColumnBlock)),
          chunks(divide_up(args.rows, std::max(kLeastRows, kChunkBytes / std::max<int64_t>(1, args.k * element_bytes)))),
          panel(blocks) {
        const int64_t block_bytes = std::max<int64_t>(1, args.k * kColumnBlock * element_bytes);
        if (chunks > 1) panel = std::min(blocks, std::max<int64_t>(1, kPanelBytes / block_bytes));
    }

    int64_t units() const { return blocks * chunks; }

    int64_t blocks, chunks, panel;
};

// Runs the units of a claim.
template <class Kernel> void run_units(Kernel kernel, LinearArgs args, const Cut& cut, const Spans::Claim& claim) {
    for (int64_t unit = claim.begin; unit < claim.end;) {
        const int64_t first = unit / (cut.panel * cut.chunks) * cut.panel, end = std::min(cut.blocks, first + cut.panel);
        const int64_t rest = unit - first * cut.chunks, chunk = rest / (end - first), block = first + rest % (end - first);
        const int64_t count = std::min(claim.end - unit, end - block);
        // The first chunk fetches the panel, the last one the beginning of the next; those between find it in the cache.
        const int64_t wanted = chunk == cut.chunks - 1 ? std::min(cut.blocks, end + 1) : chunk == 0 ? end : 0;
        args.fetch_end = std::min(wanted, block + claim.limit - unit);
        kernel(args, args.rows * chunk / cut.chunks, args.rows * (chunk + 1) / cut.chunks, block, block + count);
        unit += count;
    }
}

} // namespace

std::unique_ptr<PackedWeight> Device::pack(nb::handle matrix) {
    Type type;
    Array in = arrays_.read_matrix(matrix, "weight", type);
    auto weight = std::make_unique<PackedWeight>(in.shape[0], in.shape[1], act_bf16_, weights_);
    PackArgs args{in.data, weight->memory.data(), in.shape[0], in.shape[1], type == Type::bfloat16, act_bf16_};
    const int64_t blocks = divide_up(in.shape[0], kColumnBlock);
    run([&] { over_units(blocks, [&](int64_t block, int) { kernels_->pack(args, block, block + 1); }); });
    return weight;
}

nb::object Device::embedding(nb::handle ids, const PackedWeight& table) {
    const Array in = read(ids, "ids", Type::int32, 1);
    hold(table);
    const Size rows = rows_of(in);
    const Result out = result(Type::float32, rows, table.columns, 2);
    const EmbeddingArgs args{in.ints(), table.memory.data(), out.floats(), table.rows, table.columns, table.bf16};
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
    const Cut cut(args, bf16 ? 2 : 4);
    auto kernel = bf16 ? kernels_->linear_bf16 : kernels_->linear_f32;
    const int64_t claimants = std::min<int64_t>(cut.units(), pool_.size()), together = args.rows < kFewRows ? 2 : 1;
    LinearArgs own_args = args;
    if (coming_.next < coming_.count) own_args.pieces = &coming_;
    Spans spans(cut.units(), static_cast<int>(claimants));
    over_units(claimants, [&](int64_t own, int) {
        for (Spans::Claim claim; spans.claim(static_cast<int>(own), together, claim);) run_units(kernel, own_args, cut, claim);
    });
}

nb::object Device::linear(nb::handle x, const PackedWeight& weight, nb::handle bias, nb::handle residual) {
    const Array in = read(x, "x", act(), 2);
    check(weight.bf16 == act_bf16_, "linear: the weight was packed by a device of another compute dtype");
    const Size rows = rows_of(in);
    LinearArgs args{in.data, in.shape[1], weight.memory.data(), nullptr, nullptr, nullptr, 0, weight.rows, weight.columns};
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
