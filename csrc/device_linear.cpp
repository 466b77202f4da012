#include <atomic>
#include <cstring>

#include "best_of_rows.hpp"
#include "compact.hpp"
#include "device_output.hpp"
#include "device_parallel.hpp"

namespace octavo {

namespace {

constexpr int64_t kPanelBytes = 256 << 10; // weights that meet all rows before others do: the second-level cache should hold them
constexpr int64_t kChunkBytes = 256 << 10; // inputs of rows that meet those weights: they should stay there too
constexpr int64_t kPastCaches = 4 << 20;   // of a result: more would only push other things out of the caches
constexpr int64_t kExceptionShare = 2048;  // compact blocks: of so many elements at most one is an exception, which takes longer

// The most rows of a chunk.
int64_t chunk_rows(const KernelTable& kernels, int64_t k, int64_t element_bytes) {
    return std::max(kernels.rows_of_chunk, kChunkBytes / std::max<int64_t>(1, k * element_bytes));
}

// Units of a product: a chunk of rows times a block of columns, or `together` blocks. Blocks change fastest, within a panel;
// then chunks; then panels; then parts of the rows.
struct Cut {
    Cut(const KernelTable& kernels, const LinearArgs& args, int64_t element_bytes, int64_t together, int threads)
        : blocks(divide_up(args.n, kColumnBlock * together)),
          parts(parts_of(args.rows, kernels.rows_of_part, threads)),
          chunks(divide_up(divide_up(args.rows, parts), chunk_rows(kernels, args.k, element_bytes))), panel(blocks), together(together) {
        const int64_t block_bytes = std::max<int64_t>(1, args.k * kColumnBlock * together * element_bytes);
        if (chunks > 1) panel = std::min(blocks, std::max<int64_t>(1, kPanelBytes / block_bytes));
    }

    int64_t units_of_part() const { return blocks * chunks; }
    int64_t units() const { return parts * units_of_part(); }

    int64_t blocks, parts, chunks, panel, together;
};

// Runs the units of a claim: call(args, row0, row1, block0, block1).
template <class Call>
void run_units(const Call& call, LinearArgs args, const Cut& cut, const Spans::Claim& claim, const Reading& reading) {
    if (cut.chunks == 1) args.reading = reading;
    const int64_t units_of_part = cut.units_of_part(), chunks = cut.parts * cut.chunks;
    for (int64_t unit = claim.begin; unit < claim.end;) {
        const int64_t part = unit / units_of_part, in_part = unit % units_of_part;
        const int64_t first = in_part / (cut.panel * cut.chunks) * cut.panel, end = std::min(cut.blocks, first + cut.panel);
        const int64_t rest = in_part - first * cut.chunks, chunk = rest / (end - first), block = first + rest % (end - first);
        const int64_t count = std::min(claim.end - unit, end - block), row_chunk = part * cut.chunks + chunk;
        // The first chunk fetches the panel, the last one the beginning of the next; those between find it in the cache.
        const int64_t wanted = chunk == cut.chunks - 1 ? std::min(cut.blocks, end + 1) : chunk == 0 ? end : 0;
        args.fetch_end = std::min(wanted, block + claim.limit - unit) * cut.together;
        if (cut.chunks > 1) args.reading.after = unit + count == claim.limit ? reading.after : nullptr;
        call(args, args.rows * row_chunk / chunks, args.rows * (row_chunk + 1) / chunks, block * cut.together,
             (block + count) * cut.together);
        unit += count;
    }
}

// Its blocks in units of so many.
WeightUnits units_of(const PackedWeight& weight, int64_t together) {
    const int64_t blocks = std::max<int64_t>(1, divide_up(weight.rows, kColumnBlock));
    return {weight.memory.data(), divide_up(blocks, together), weight.memory.bytes() / blocks * together};
}

Reading reading_of(const WeightStream& stream, const Cut& cut, const Spans& spans, const Spans::Claim& claim, int thread) {
    const int64_t end = limit_in_part(claim, cut.units_of_part()) * stream.own.unit_bytes;
    return stream.of(spans, cut.parts, thread, stream.own.data + end);
}

} // namespace

std::unique_ptr<PackedWeight> Device::pack(nb::sequence matrices, bool gated) {
    std::vector<const void*> rows;
    Type type{};
    int64_t k = 0;
    for (nb::handle matrix : matrices) {
        Type own;
        const Array in = arrays_.read_matrix(matrix, "weight", own);
        check(rows.empty() || (in.shape[1] == k && own == type), "matrices of a weight must have the same columns and dtype");
        type = own;
        k = in.shape[1];
        for (int64_t row = 0; row < in.shape[0]; ++row) rows.push_back(in.data + row * k * (type == Type::bfloat16 ? 2 : 4));
    }
    const auto n = static_cast<int64_t>(rows.size());
    check_gates(n, gated);
    auto weight = std::make_unique<PackedWeight>(n, k, act_bf16_, gated, weights_.take(packed_weight_bytes(n, k, act_bf16_)));
    std::vector<const void*> columns(n);
    for (int64_t row = 0; row < n; ++row) columns[gated ? place_of_gated(row, n) : row] = rows[row];
    PackArgs args{columns.data(), weight->memory.data(), n, k, type == Type::bfloat16, act_bf16_};
    const int64_t blocks = divide_up(n, kColumnBlock);
    run([&] {
        if (act_bf16_ && kernels_->linear_compact && pack_compact(args, *weight)) return;
        over_units(blocks, [&](int64_t block, int) { kernels_->pack(args, block, block + 1); });
    });
    if (weight->compact) weights_.shorten(weight->memory, weight->memory.bytes() * 3 / 4);
    return weight;
}

bool Device::pack_compact(const PackArgs& args, PackedWeight& weight) {
    const int64_t blocks = divide_up(args.n, kColumnBlock), steps = divide_up(args.k, kDepthStep);
    const int64_t elements = steps * 2 * kTileElements, most = blocks * elements / kExceptionShare;
    if (blocks == 0 || elements >= kMostPlaces) return false;
    std::vector<std::vector<uint16_t>> plain(pool_.size());
    std::vector<std::vector<uint32_t>> exceptions(blocks);
    std::atomic<int64_t> count = 0;
    weight.highs.resize(blocks * 16);
    const int64_t groups = fixed_groups(args.k);
    const bool fixed = kernels_->fix_block;
    if (fixed) {
        weight.exponents.resize(blocks * groups);
        weight.scales.resize(blocks * kColumnBlock);
        weight.errors.resize(blocks * kColumnBlock);
    }
    over_units(blocks, [&](int64_t block, int thread) {
        if (count.load(std::memory_order_relaxed) > most) return;
        plain[thread].assign(elements, 0);
        PackArgs one = args;
        one.dst = plain[thread].data();
        one.first_block = block;
        kernels_->pack(one, block, block + 1);
        if (fixed) {
            float* scales = weight.scales.data() + block * kColumnBlock;
            const FixBlockArgs fix{plain[thread].data(), args.k, weight.exponents.data() + block * groups, scales, weight.errors.data() + block * kColumnBlock};
            if (!kernels_->fix_block(fix)) count += most + 1;
        }
        auto* to = reinterpret_cast<uint8_t*>(weight.memory.data()) + block * elements * 3 / 2;
        encode_block(plain[thread].data(), steps, to, weight.highs.data() + block * 16, exceptions[block]);
        count += static_cast<int64_t>(exceptions[block].size());
    });
    if (count > most) {
        std::memset(weight.memory.data(), 0, weight.memory.bytes());
        weight.highs = weight.exponents = {};
        weight.scales = weight.errors = {};
        return false;
    }
    for (const std::vector<uint32_t>& own : exceptions) {
        weight.first_exceptions.push_back(static_cast<int64_t>(weight.exceptions.size()));
        weight.exceptions.insert(weight.exceptions.end(), own.begin(), own.end());
        weight.exceptions.push_back(kNoException);
    }
    weight.make_compact();
    return true;
}

void Device::check_packing(const PackedWeight& w) const {
    const bool fits = !w.compact || (kernels_->linear_compact && !w.compact->scales == !kernels_->fix_block);
    check(fits, "the weight was packed for other kernels");
}

nb::object Device::embedding(nb::handle ids, const PackedWeight& table) {
    const Array in = read(ids, "ids", Type::int32, 1);
    check(!table.gated, "embedding: the table was packed for gated_linear");
    check_packing(table);
    hold(table);
    const Size rows = rows_of(in);
    const Result out = result(Type::float32, rows, table.columns, 2);
    const EmbeddingArgs args{in.ints(), table.memory.data(), out.floats(), table.rows, table.columns, table.bf16,
                             table.compact.get()};
    issue_in_lanes([this, args, rows] {
        const Range own = rows.range();
        check_range("token id", args.ids + own.begin, own.count(), 0, args.n);
        auto kernel = args.compact ? kernels_->embedding_compact : kernels_->embedding;
        over_rows(own, own.count() * args.k * 4, [&](int64_t r0, int64_t r1) { kernel(args, r0, r1); });
    });
    return out.array;
}

LinearArgs Device::staged(const LinearArgs& args, Range own, char* stage) {
    LinearArgs now = args;
    now.rows = own.count();
    now.x = static_cast<const char*>(args.x) + own.begin * args.x_stride * act_bytes();
    if (args.out) now.out += own.begin * args.out_stride;
    if (args.residual) now.residual += own.begin * args.out_stride;
    if (!act_bf16_) return now;
    const auto* src = static_cast<const uint16_t*>(now.x);
    const int64_t k = args.k, work = own.count() * k;
    const Range rows{0, own.count()};
    stage += own.begin * staged_row_bytes(args);
    if (in_whole_numbers(args)) {
        auto* fixed = reinterpret_cast<int16_t*>(stage);
        over_rows(rows, work, [&](int64_t r0, int64_t r1) { kernels_->fix_rows({src, fixed, k}, r0, r1); });
        now.x = fixed;
        now.x_stride = fixed_row_elements(k);
    } else if (kernels_->activation == Activation::fp32) {
        auto* wide = reinterpret_cast<float*>(stage);
        over_rows(rows, work / 2, [&](int64_t r0, int64_t r1) {
            kernels_->expand_bf16(src + r0 * k, wide + r0 * k, (r1 - r0) * k);
        });
        now.x = wide;
    } else if (kernels_->activation == Activation::bf16_padded && k % kDepthStep) {
        now.x_stride = divide_up(k, kDepthStep) * kDepthStep;
        auto* padded = reinterpret_cast<uint16_t*>(stage);
        over_rows(rows, work / 4, [&](int64_t r0, int64_t r1) {
            for (int64_t r = r0; r < r1; ++r) {
                std::memcpy(padded + r * now.x_stride, src + r * k, k * 2);
                std::memset(padded + r * now.x_stride + k, 0, (now.x_stride - k) * 2);
            }
        });
        now.x = padded;
    }
    return now;
}

decltype(KernelTable::linear_bf16) Device::kernel_of(const LinearArgs& args) const {
    return args.compact ? linear_compact_ : act_bf16_ ? kernels_->linear_bf16 : kernels_->linear_f32;
}

std::shared_ptr<const WeightStream> Device::follow(const WeightUnits& own) {
    auto stream = std::make_shared<WeightStream>(WeightStream{own, {}});
    if (last_stream_) last_stream_->next = own;
    last_stream_ = program_ ? stream : nullptr;
    return stream;
}

int64_t Device::sums_of_chunk(int64_t rows, int64_t k) const {
    return std::min(rows, chunk_rows(*kernels_, k, act_bytes())) * 2 * kColumnBlock;
}

void Device::multiply(const LinearArgs& args, const WeightStream& stream) {
    const Cut cut(*kernels_, args, act_bytes(), 1, pool_.team());
    const auto kernel = kernel_of(args);
    LinearArgs common = args;
    // Logits, above all: rows far apart whose lines would share few places in the caches.
    common.past_caches = !args.residual && args.n % 16 == 0 && args.out_stride == args.n && args.rows * args.n * 4 >= kPastCaches;
    Spans spans(cut.units(), pool_.team());
    over_claims(spans, args.rows < kFewRows ? 2 : 1, [&](const Spans::Claim& claim, int thread) {
        LinearArgs own = common;
        own.pieces = coming_of(thread);
        run_units(kernel, own, cut, claim, reading_of(stream, cut, spans, claim, thread));
    });
}

// A unit's product lies in a cache until it has passed its gates.
void Device::multiply_gated(const LinearArgs& args, const WeightStream& stream, const GatedBlockArgs& gate, float* sums, int64_t sums_size) {
    const Cut cut(*kernels_, args, act_bytes(), 2, pool_.team());
    const auto kernel = kernel_of(args);
    Spans spans(cut.units(), pool_.team());
    over_claims(spans, 1, [&](const Spans::Claim& claim, int thread) {
        auto unit = [&, mine = sums + thread * sums_size](LinearArgs now, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
            now.out = mine;
            now.first_row = row0;
            now.first_column = block0 * kColumnBlock;
            kernel(now, row0, row1, block0, block1);
            kernels_->silu_and_mul_block(block_of(gate, mine, row0, row1, block0 / 2 * kColumnBlock));
        };
        LinearArgs own = args;
        own.pieces = coming_of(thread);
        run_units(unit, own, cut, claim, reading_of(stream, cut, spans, claim, thread));
    });
}

void Device::best_of_blocks(LinearArgs args, int64_t row0, int64_t row1, int64_t block0, int64_t block1, const BestOfRows& best,
                            float* sums, int thread) {
    args.out = sums;
    args.first_row = row0;
    args.first_column = block0 * kColumnBlock;
    kernel_of(args)(args, row0, row1, block0, block1);
    kernels_->best_of_block(best.of(thread, args, row1 - row0, std::min(args.n, block1 * kColumnBlock) - args.first_column));
}

// A unit's product lies in a cache until the best of its rows are known.
void Device::multiply_argmax(const LinearArgs& args, const WeightStream& stream, const BestOfRows& best, float* sums, int32_t* places) {
    const Cut cut(*kernels_, args, act_bytes(), 1, pool_.size());
    const int64_t sums_size = sums_of_chunk(args.rows, args.k);
    Spans spans(cut.units(), pool_.team());
    over_claims(spans, args.rows < kFewRows ? 2 : 1, [&](const Spans::Claim& claim, int thread) {
        auto unit = [&, mine = sums + thread * sums_size](const LinearArgs& now, int64_t row0, int64_t row1, int64_t block0, int64_t block1) {
            best_of_blocks(now, row0, row1, block0, block1, best, mine, thread);
        };
        run_units(unit, args, cut, claim, reading_of(stream, cut, spans, claim, thread));
    });
    best.merge(places);
}

LinearArgs Device::product_of(const Array& x, const PackedWeight& weight) const {
    check(weight.bf16 == act_bf16_, "linear: the weight was packed by a device of another compute dtype");
    check_packing(weight);
    LinearArgs args{x.data, x.shape[1], weight.memory.data(), nullptr, nullptr, nullptr, 0, weight.rows, weight.columns, weight.rows};
    args.compact = weight.compact.get();
    args.tuning = tuning_;
    return args;
}

int64_t Device::staged_row_bytes(const LinearArgs& args) const {
    if (in_whole_numbers(args)) return fixed_row_elements(args.k) * 2;
    const bool wanted = act_bf16_ && (kernels_->activation == Activation::fp32 ||
                                      (kernels_->activation == Activation::bf16_padded && args.k % kDepthStep));
    return wanted ? divide_up(args.k, kDepthStep) * kDepthStep * 4 : 0;
}

nb::object Device::new_result(nb::handle x, int64_t columns) {
    check(columns >= 1, "a result must have columns");
    return result(Type::float32, rows_of(read(x, "x", act(), 2)), columns, 2).array;
}

nb::object Device::linear(nb::handle x, const PackedWeight& weight, nb::handle bias, nb::handle residual, const Into& into) {
    const Array in = read(x, "x", act(), 2);
    check(!weight.gated, "linear: the weight was packed for gated_linear");
    const Size rows = rows_of(in);
    LinearArgs args = product_of(in, weight);
    nb::object out = open_output(args, in, weight, bias, residual, into);
    const auto memory = scratch_of_rows(rows, staged_row_bytes(args));
    issue_in_lanes([this, args, rows, stage = memory.data(), stream = follow(units_of(weight, 1))] {
        multiply(staged(args, rows.range(), stage), *stream);
    });
    return out;
}

nb::object Device::linear_argmax(nb::handle x, const PackedWeight& weight, nb::handle allowed) {
    const Array in = read(x, "x", act(), 2);
    check(!weight.gated, "linear_argmax: the weight was packed for gated_linear");
    check(in.shape[1] == weight.columns, "linear_argmax: x must have one column for each input of the weight");
    check(weight.rows <= INT32_MAX, "linear_argmax: the weight has too many rows");
    hold(weight);
    const Size rows = rows_of(in);
    const Allowed bits = read_allowed(allowed, rows, weight.rows);
    const Result out = result(Type::int32, rows, 1, 1);
    LinearArgs args = product_of(in, weight);
    args.out_stride = 2 * kColumnBlock;
    const auto memory = scratch_of_rows(rows, staged_row_bytes(args));
    const auto sums = scratch_of_threads(sums_of_chunk(rows.capacity, args.k) * 4);
    const auto bests = scratch(BestOfRows::bytes(pool_.size(), rows.capacity));
    const std::vector<Attempt> attempts = attempts_by(weight.shortlists, in, nullptr);
    const auto promises = scratch(promise_bytes(attempts, rows.capacity));
    const Attempt* likely = attempt_for(attempts, rows.capacity);
    const WeightStream stream{units_of(weight, 1), {}}; // nothing follows the head
    follow(likely ? spans_of(likely->rough.args, 1) : stream.own);
    issue([this, args, attempts, stream, rows, bits, stage = memory.data(), own = reinterpret_cast<float*>(sums.data()), found = bests.data(),
           promised = promises.data(), places = out.ints()] {
        const int64_t count = rows.now();
        const LinearArgs now = staged(args, {0, count}, stage);
        Promises tops;
        const FixRowsArgs fixed{static_cast<const uint16_t*>(args.x), reinterpret_cast<int16_t*>(stage), args.k};
        const FixRowsArgs* in_numbers = in_whole_numbers(args) ? &fixed : nullptr;
        if (Shortlist* list = promise(attempts, count, promised, bits.now(), bits.words, in_numbers, tops)) {
            const BestOfRows best(found, pool_.size(), count, bits.now(), bits.words);
            const auto compute = [&](int64_t row, int64_t block, int thread) {
                best_of_blocks(now, row, row + 1, block, block + 1, best, own + thread * now.out_stride, thread);
            };
            if (settle(*list, tops, best, compute)) return best.merge(places);
        }
        const BestOfRows best(found, pool_.size(), count, bits.now(), bits.words);
        multiply_argmax(now, stream, best, own, places);
    });
    return out.array;
}

nb::object Device::gated_linear(nb::handle x, const PackedWeight& weight, nb::handle bias) {
    const Array in = read(x, "x", act(), 2);
    const Size rows = rows_of(in);
    nb::object out;
    const GatedBlockArgs gate = open_gates(in, weight, bias, out);
    LinearArgs args = product_of(in, weight);
    args.out_stride = 2 * kColumnBlock;
    const auto memory = scratch_of_rows(rows, staged_row_bytes(args));
    const int64_t sums_size = sums_of_chunk(rows.capacity, args.k);
    const auto sums = scratch_of_threads(sums_size * 4);
    issue_in_lanes([this, args, gate, rows, sums_size, stage = memory.data(), own = reinterpret_cast<float*>(sums.data()),
                    stream = follow(units_of(weight, 2))] {
        const Range now = rows.range();
        multiply_gated(staged(args, now, stage), *stream, from_row(gate, now.begin), own, sums_size);
    });
    return out;
}

} // namespace octavo
