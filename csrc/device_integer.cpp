#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <vector>

#include "best_of_rows.hpp"
#include "device_output.hpp"
#include "device_parallel.hpp"

namespace octavo {

// The blocks of a product in panels, `together` blocks or a multiple of that each, its tiles in parts of so many chunks of rows: a
// unit is a chunk of a panel.
struct IntegerCut {
    int64_t blocks, tiles, panel, parts, row_chunks;
    int64_t units_of_part() const { return divide_up(blocks, panel) * row_chunks; }
    int64_t units() const { return parts * units_of_part(); }
};

namespace {

constexpr int64_t kPanelBytes = 256 << 10; // weights of a unit that meets many rows: they should stay in the second-level cache
constexpr int64_t kRowsOfUnit = 192;       // rows of a unit: their records should stay there too
constexpr int64_t kUnitsPerThread = 12;    // at most
constexpr double kUnitNanoseconds = 12000; // shorter units cost more to begin than a more even end is worth
// What a thread gets through in a nanosecond, where memory and arithmetic are each shared fairly.
constexpr double kBytesPerNanosecond = 25, kProductsPerNanosecond = 350;

const IntegerKernels& kernels_for(const IntegerKernels& kernels, int64_t rows) {
    return kernels.few && rows < kManyRows ? *kernels.few() : kernels;
}

// Enough units to share out evenly, each long enough to be worth handing out, few enough blocks in each to stay in the cache
// while many rows pass.
IntegerCut cut_integer(const IntegerKernels& kernels, const IntegerLinearArgs& a, int threads, int64_t together = 1) {
    const int64_t parts = parts_of(a.rows * a.levels, kernels.rows_of_part, threads);
    const int64_t blocks = divide_up(a.n, kIntegerColumns), row_chunks = divide_up(divide_up(a.rows, parts), kRowsOfUnit);
    const int64_t block_bytes = a.block_bytes();
    const double products = static_cast<double>(a.rows * a.levels) * kIntegerColumns * kGroup * static_cast<double>(a.groups);
    const double block_ns = std::max(static_cast<double>(block_bytes) / kBytesPerNanosecond, products / kProductsPerNanosecond);
    const auto worthwhile = static_cast<int64_t>(block_ns * static_cast<double>(blocks) / kUnitNanoseconds);
    const int64_t wanted = std::clamp<int64_t>(worthwhile / threads, 1, kUnitsPerThread) * threads;
    const int64_t largest = std::max<int64_t>(1, a.rows > 16 ? kPanelBytes / block_bytes : blocks);
    int64_t panel = divide_up(std::clamp<int64_t>(divide_up(blocks * row_chunks * parts, wanted), 1, largest), together) * together;
    // Or a shorter one with which threads end together, as those do that have a part each.
    const auto most_of_a_thread = [&](int64_t size) { return divide_up(divide_up(blocks, size) * row_chunks, threads) * size; };
    const int64_t least = parts > 1 ? panel : std::max<int64_t>(panel / 2, 1);
    for (int64_t size = panel - together; size >= least && most_of_a_thread(panel) * threads > blocks * row_chunks; size -= together) {
        if (most_of_a_thread(size) < most_of_a_thread(panel)) panel = size;
    }
    return {blocks, a.tiles, panel, parts, row_chunks};
}

struct IntegerUnit {
    int64_t tile0, tile1, row0, row1, block0, block1;
};

IntegerUnit unit_of(const IntegerLinearArgs& a, const IntegerCut& cut, int64_t unit) {
    const int64_t part = unit / cut.units_of_part(), in_part = unit % cut.units_of_part(), chunks = cut.parts * cut.row_chunks;
    const int64_t block = in_part / cut.row_chunks * cut.panel, chunk = part * cut.row_chunks + in_part % cut.row_chunks;
    const int64_t tile0 = cut.tiles * chunk / chunks, tile1 = cut.tiles * (chunk + 1) / chunks;
    const EvenTiles rows(a.rows, a.tiles);
    return {tile0, tile1, rows.begin(tile0), rows.begin(tile1), block, std::min(cut.blocks, block + cut.panel)};
}

void run_integer_unit(const IntegerKernels& kernels, const IntegerLinearArgs& args, const IntegerCut& cut, int64_t unit) {
    const IntegerUnit u = unit_of(args, cut, unit);
    kernels.linear(args, u.tile0, u.tile1, u.block0, u.block1);
}

// The blocks of a unit, so many together: call(args, rows, columns) with their product, of the rows from args.first_row and the
// columns from args.first_column on, at args.out, which is memory for as many blocks.
template <class Call>
void over_blocks_of_unit(const IntegerKernels& kernels, IntegerLinearArgs args, const IntegerCut& cut, int64_t unit, int64_t together,
                         const Call& call) {
    const IntegerUnit u = unit_of(args, cut, unit);
    args.first_row = u.row0;
    for (int64_t block = u.block0; block < u.block1; block += together) {
        args.first_column = block * kIntegerColumns;
        kernels.linear(args, u.tile0, u.tile1, block, block + together);
        call(args, u.row1 - u.row0, std::min<int64_t>(together * kIntegerColumns, args.n - args.first_column));
    }
}

} // namespace

WeightUnits Device::spans_of(const IntegerLinearArgs& args, int64_t together) const {
    const int64_t blocks = divide_up(divide_up(args.n, kIntegerColumns), pool_.size() * together) * together;
    return {args.weight, pool_.size(), blocks * args.block_bytes()};
}

template <class Call>
void Device::over_integer_units(const IntegerLinearArgs& args, const IntegerCut& cut, const WeightStream& stream, const Call& call) {
    const int64_t block_bytes = args.block_bytes();
    Spans spans(cut.units(), pool_.team());
    over_claims(spans, 1, [&](const Spans::Claim& claim, int thread) {
        IntegerLinearArgs own = args;
        own.pieces = &coming_[thread];
        const int64_t panels = divide_up(limit_in_part(claim, cut.units_of_part()), cut.row_chunks);
        own.reading = stream.of(spans, cut.parts, thread, args.weight + std::min(cut.blocks, panels * cut.panel) * block_bytes);
        if (cut.row_chunks > 1 && claim.end < claim.limit) own.reading.after = nullptr; // others of its rows come first
        call(own, claim.begin, thread);
    });
}

int64_t groups_of_row(int bits, int64_t columns) {
    check(std::find(std::begin(kBitsOf), std::end(kBitsOf), bits) != std::end(kBitsOf), "bits must be 4, 5, 6 or 8");
    check(columns % kGroup == 0, "a row must be groups of 32 values");
    return columns / kGroup;
}

int64_t integer_weight_bytes(int64_t rows, int64_t groups, int bits, bool paired) {
    const int64_t limit = std::numeric_limits<int32_t>::max();
    check(rows >= 0 && groups >= 1 && rows < limit && groups < limit / kGroup, "size out of range");
    return divide_up(rows, kIntegerColumns) * integer_block_bytes(groups, bits, paired);
}

namespace {

// An output's values of a group, `to` being its place in the first line.
void pack_group(const IntegerSource& source, const uint8_t* values, char* to) {
    const auto put = [&](int64_t line, uint32_t word) { std::memcpy(to + line * kLine, &word, 4); };
    uint32_t words[8] = {};
    std::memcpy(words, values, source.bits == 4 ? kGroup / 2 : kGroup);
    if (source.bits == 4 || source.bits == 8) {
        for (int line = 0; line < source.bits; ++line) put(line, words[line] ^ (source.bits == 8 ? 0x80808080u : 0));
        return;
    }
    uint32_t highs[2] = {};
    for (int line = 0; line < 8; ++line) {
        if (source.bits == 6) words[line] = (words[line] ^ 0x20202020u) & 0x3F3F3F3Fu; // value + 32
        if (source.bits == 5) highs[0] |= (words[line] >> 4 & 0x01010101u) << line;
        else highs[line / 4] |= (words[line] >> 4 & 0x03030303u) << line % 4 * 2;
    }
    for (int line = 0; line < 4; ++line) put(line, (words[line] & 0x0F0F0F0Fu) | (words[line + 4] & 0x0F0F0F0Fu) << 4);
    for (int line = 4; line < source.bits; ++line) put(line, highs[line - 4]);
}

// An output's scales and minimums as whole numbers, `block` being its block and `n` its place in the source; `numbers` is memory for
// twice as many as there are groups. Loops are simple, so that a compiler makes vectors of them.
void pack_pairs(const IntegerSource& source, int64_t n, char* block, int64_t column, float* numbers) {
    const int64_t groups = source.groups, bytes = group_bytes(source.bits);
    const uint16_t *scales = source.scales + n * groups, *minimums = source.minimums + n * groups;
    float largest = 0;
    for (int64_t g = 0; g < groups; ++g) {
        numbers[g] = half_to_float(scales + g);
        numbers[groups + g] = (half_to_float(minimums + g) + kTooLarge * numbers[g]) / kTooLarge;
    }
    for (int64_t i = 0; i < 2 * groups; ++i) largest = std::max(largest, std::abs(numbers[i]));
    const float unit = largest / kMostScale, divisor = unit > 0 ? unit : 1;
    for (int64_t i = 0; i < 2 * groups; ++i) numbers[i] = numbers[i] / divisor + (numbers[i] < 0 ? -0.5f : 0.5f);
    for (int64_t g = 0; g < groups; ++g) {
        char* to = block + g / 2 * 2 * bytes + scales_of_pair(column) + g % 2 * 2;
        const auto scale = static_cast<int16_t>(numbers[g]), minimum = static_cast<int16_t>(numbers[groups + g]);
        std::memcpy(to, &scale, 2);
        std::memcpy(to + kIntegerColumns * 4, &minimum, 2);
    }
    std::memcpy(block + groups * bytes + column * 4, &unit, 4);
}

} // namespace

void pack_integer_rows(const IntegerSource& source, const IntegerPlace& to, int64_t row0, int64_t row1) {
    const int64_t bytes = group_bytes(source.bits), given = source.bits == 4 ? kGroup / 2 : kGroup;
    std::vector<float> numbers(to.paired ? 2 * source.groups : 0);
    for (int64_t n = row0; n < row1; ++n) {
        const int64_t row = to.first + n, place = to.gated ? place_of_gated(row, to.rows) : row;
        const int64_t block = place / kIntegerColumns, column = place % kIntegerColumns;
        char* group = to.blocks + block * integer_block_bytes(source.groups, source.bits, to.paired);
        if (to.paired) pack_pairs(source, n, group, column, numbers.data());
        for (int64_t g = 0; g < source.groups; ++g, group += bytes) {
            const int64_t from = n * source.groups + g;
            const int64_t sooner = to.paired && g % 2 ? bytes - kLinesOfFour : 0; // scales of pairs come later
            pack_group(source, source.values + from * given, group - sooner + place_of_column(source.bits, column));
            if (to.paired) continue;
            char* scales = group + scale_of_column(source.bits, column);
            char* seconds = scales + 2 * kIntegerColumns;
            std::memcpy(scales, source.scales + from * (source.bits == 6 ? 2 : 1), 2);
            if (source.bits == 6) std::memcpy(seconds, source.scales + from * 2 + 1, 2);
            else if (source.minimums) std::memcpy(seconds, source.minimums + from, 2);
        }
    }
}

std::unique_ptr<IntegerWeight> Device::integer_weight(int bits, int64_t rows, int64_t groups, bool gated, bool vocabulary) {
    check_gates(rows, gated);
    const bool paired = pairs_ && bits == 4 && groups % 2 == 0 && !vocabulary;
    return std::make_unique<IntegerWeight>(rows, groups, bits, gated, paired, weights_.take(integer_weight_bytes(rows, groups, bits, paired)));
}

void Device::pack_rows(const IntegerSource& source, IntegerWeight& weight, int64_t first) {
    const IntegerPlace place{weight.memory.data(), weight.rows, first, weight.gated, weight.paired};
    run([&] {
        over_units(divide_up(source.rows, kIntegerColumns), [&](int64_t unit, int) {
            pack_integer_rows(source, place, unit * kIntegerColumns, std::min(source.rows, (unit + 1) * kIntegerColumns));
        });
    });
}

nb::object Device::embedding_integer(nb::handle ids, const IntegerWeight& table) {
    const Array in = read(ids, "ids", Type::int32, 1);
    check(!table.gated, "embedding: the table was packed for gated_linear");
    check(!table.paired, "embedding: the table was not packed as that of a vocabulary");
    hold(table);
    const Size rows = rows_of(in);
    const Result out = result(Type::float32, rows, table.columns, 2);
    const IntegerEmbeddingArgs args{in.ints(), table.memory.data(), out.floats(), table.columns / kGroup, table.bits};
    issue_in_lanes([this, args, rows, ids_end = table.rows] {
        const Range own = rows.range();
        check_range("token id", args.ids + own.begin, own.count(), 0, ids_end);
        over_rows(own, own.count() * args.groups * kGroup * 4, [&](int64_t r0, int64_t r1) { integer_->embedding(args, r0, r1); });
    });
    return out.array;
}

void Device::check_packing(const IntegerWeight& w) const {
    check(!w.paired || pairs_, "the weight was packed for other kernels");
}

Device::IntegerProduct Device::product_of(const Array& x, const IntegerWeight& weight, int64_t out_stride) const {
    check_packing(weight);
    const int64_t groups = weight.columns / kGroup;
    return {.args = {.weight = weight.memory.data(),
                     .n = weight.rows,
                     .groups = groups,
                     .bits = weight.bits,
                     .out_stride = out_stride,
                     .levels = activation_levels_,
                     .tuning = tuning_,
                     .paired = weight.paired},
            .quantize = {.x = x.data,
                         .groups = groups,
                         .x_bf16 = act_bf16_,
                         .bits = weight.bits,
                         .levels = activation_levels_,
                         .paired = weight.paired}};
}

namespace {

int64_t bytes_of_row(const QuantizeArgs& a) { return a.groups * kGroup * (a.x_bf16 ? 2 : 4); }

} // namespace

const IntegerKernels& Device::quantize_rows(IntegerProduct& product, Range own, char* records, bool alone) {
    const int64_t rows = own.count();
    const IntegerKernels& kernels = kernels_for(*integer_, alone ? 1 : rows);
    QuantizeArgs& quantize = product.quantize;
    quantize.x = static_cast<const char*>(quantize.x) + own.begin * bytes_of_row(quantize);
    if (product.args.out) product.args.out += own.begin * product.args.out_stride;
    if (product.args.residual) product.args.residual += own.begin * product.args.out_stride;
    product.args.x = quantize.out = records + records_bytes(own.begin, quantize.groups, quantize.bits, quantize.levels, quantize.paired);
    quantize.rows = product.args.rows = rows;
    quantize.tiles = product.args.tiles = alone ? rows : kernels.tiles(rows, quantize.bits, quantize.levels, quantize.ends != 0);
    over_rows({0, quantize.tiles}, 2 * rows * quantize.groups * kGroup, [&](int64_t t0, int64_t t1) { kernels.quantize(quantize, t0, t1); });
    return kernels;
}

ResultMemory::Lease Device::memory_for_records(Size rows, const IntegerWeight& weight) {
    return scratch_of_rows(rows, records_bytes(1, weight.columns / kGroup, weight.bits, activation_levels_, weight.paired));
}

nb::object Device::linear_integer(nb::handle x, const IntegerWeight& weight, nb::handle bias, nb::handle residual,
                                  const Into& into) {
    const Array in = read(x, "x", act(), 2);
    check(!weight.gated, "linear: the weight was packed for gated_linear");
    const Size rows = rows_of(in);
    IntegerProduct product = product_of(in, weight, weight.rows);
    nb::object out = open_output(product.args, in, weight, bias, residual, into);
    const auto records = memory_for_records(rows, weight);
    issue_in_lanes([this, product, rows, memory = records.data(), stream = follow(spans_of(product.args, 1))] {
        IntegerProduct now = product;
        const IntegerKernels& kernels = quantize_rows(now, rows.range(), memory);
        const IntegerCut cut = cut_integer(kernels, now.args, pool_.team());
        over_integer_units(now.args, cut, *stream, [&](const IntegerLinearArgs& args, int64_t unit, int) {
            run_integer_unit(kernels, args, cut, unit);
        });
    });
    return out;
}

// Pair by pair of blocks, whose products lie in a cache until they have passed their gates.
nb::object Device::gated_linear_integer(nb::handle x, const IntegerWeight& weight, nb::handle bias) {
    const Array in = read(x, "x", act(), 2);
    const Size rows = rows_of(in);
    nb::object out;
    const GatedBlockArgs gate = open_gates(in, weight, bias, out);
    const int64_t sums_size = 2 * sums_of_blocks(rows.capacity);
    const auto records = memory_for_records(rows, weight);
    const auto sums = scratch_of_threads(sums_size * 4);
    const IntegerProduct product = product_of(in, weight, 2 * kIntegerColumns);
    issue_in_lanes([this, product, rows, gate, sums_size, memory = records.data(), own = reinterpret_cast<float*>(sums.data()),
                    stream = follow(spans_of(product.args, 2))] {
        const Range here = rows.range();
        IntegerProduct mine = product;
        const GatedBlockArgs gates = from_row(gate, here.begin);
        const IntegerKernels& kernels = quantize_rows(mine, here, memory);
        const IntegerCut cut = cut_integer(kernels, mine.args, pool_.team(), 2);
        over_integer_units(mine.args, cut, *stream, [&](IntegerLinearArgs now, int64_t unit, int thread) {
            now.out = own + thread * sums_size;
            over_blocks_of_unit(kernels, now, cut, unit, 2, [&](const IntegerLinearArgs& a, int64_t count, int64_t) {
                kernels_->silu_and_mul_block(block_of(gates, a.out, a.first_row, a.first_row + count, a.first_column / 2));
            });
        });
    });
    return out;
}

int64_t Device::sums_of_blocks(int64_t rows) const { return std::min(rows, 2 * kRowsOfUnit) * kIntegerColumns; }

std::vector<Device::Attempt> Device::attempts_by(const std::vector<std::shared_ptr<Shortlist>>& lists, const Array& x,
                                                 const IntegerWeight* itself) const {
    std::vector<Attempt> attempts;
    for (const auto& list : lists) {
        IntegerProduct rough = product_of(x, list->rough ? *list->rough : *itself, kIntegerColumns);
        rough.args.levels = rough.quantize.levels = list->levels;
        rough.args.ends = rough.quantize.ends = list->ends;
        attempts.push_back({list, rough});
    }
    return attempts;
}

const Device::Attempt* Device::attempt_for(const std::vector<Attempt>& attempts, int64_t rows) {
    const auto takes = [rows](const Attempt& attempt) { return attempt.list->takes(rows); };
    const auto found = std::find_if(attempts.begin(), attempts.end(), takes);
    return found == attempts.end() ? nullptr : &*found;
}

int64_t Device::promise_bytes(const std::vector<Attempt>& attempts, int64_t rows) const {
    int64_t most = 0;
    for (const auto& [list, rough] : attempts) {
        const int64_t records = records_bytes(rows, rough.args.groups, rough.args.bits, rough.args.levels, false);
        const int64_t found = Promises::bytes(rows, divide_up(rough.args.n, kIntegerColumns), pool_.size());
        const int64_t ordered = list->ends ? rows * bytes_of_row(rough.quantize) : 0;
        most = std::max(most, found + pool_.size() * sums_of_blocks(rows) * 4 + ordered + records);
    }
    return most;
}

Shortlist* Device::promise(const std::vector<Attempt>& attempts, int64_t rows, char* memory, const uint32_t* allowed, int64_t words,
                           const FixRowsArgs* fixed, Promises& found) {
    const Attempt* attempt = attempt_for(attempts, rows);
    if (!attempt) return nullptr;
    Shortlist& list = *attempt->list;
    IntegerProduct rough = attempt->rough;
    if (list.pause > 0) return --list.pause, nullptr;
    const int64_t blocks = divide_up(rough.args.n, kIntegerColumns), sums_size = sums_of_blocks(rows);
    found = Promises(memory, rows, blocks, pool_.size());
    auto* sums = reinterpret_cast<float*>(memory + Promises::bytes(rows, blocks, pool_.size()));
    char* records = reinterpret_cast<char*>(sums + pool_.size() * sums_size);
    if (list.ends) {
        QuantizeArgs& quantize = rough.quantize;
        const auto put = [&]<class T>(const T* from) {
            over_rows({0, rows}, 2 * rows * quantize.groups * kGroup,
                      [&](int64_t r0, int64_t r1) { put_in_order(from, list.order, r0, r1, reinterpret_cast<T*>(records)); });
        };
        if (quantize.x_bf16) put(static_cast<const uint16_t*>(quantize.x));
        else put(static_cast<const float*>(quantize.x));
        quantize.x = records;
        records += rows * bytes_of_row(quantize);
    }
    const IntegerKernels& kernels = quantize_rows(rough, {0, rows}, records);
    over_rows({0, rough.args.tiles}, 2 * rows * rough.args.groups * kGroup,
              [&](int64_t t0, int64_t t1) { kernels.measure(rough.quantize, list.inverse_sizes.data(), found.lengths, found.changes, t0, t1); });
    if (fixed) {
        over_rows({0, rows}, 2 * rows * fixed->k, [&](int64_t r0, int64_t r1) { kernels_->add_changes(*fixed, list.largest_inverse_size, found.changes, r0, r1); });
    }
    for (int64_t row = 0; row < rows; ++row) {
        if (!(found.lengths[row] < Shortlist::kLongest && found.changes[row] < Shortlist::kLongest)) return nullptr;
    }
    std::fill_n(found.floors, pool_.size() * found.stride, -std::numeric_limits<float>::infinity());
    const IntegerCut cut = cut_integer(kernels, rough.args, pool_.size());
    over_integer_units(rough.args, cut, {spans_of(rough.args, 1), {}}, [&](IntegerLinearArgs now, int64_t unit, int thread) {
        now.out = sums + thread * sums_size;
        over_blocks_of_unit(kernels, now, cut, unit, 1, [&](const IntegerLinearArgs& a, int64_t count, int64_t columns) {
            const int64_t row0 = a.first_row;
            kernels_->promise_of_block({a.out, count, a.out_stride, a.first_column, columns, list.per_input.data(), list.per_error.data(),
                                        found.lengths + row0, found.changes + row0, found.floors + thread * found.stride + row0,
                                        found.tops + row0 * found.row_stride + a.first_column / kIntegerColumns, found.row_stride,
                                        allowed ? allowed + row0 * words : nullptr, words});
        });
    });
    return &list;
}

// Block by block, whose products lie in a cache until the best of their rows are known.
nb::object Device::linear_argmax_integer(nb::handle x, const IntegerWeight& weight, nb::handle allowed) {
    const Array in = read(x, "x", act(), 2);
    check(!weight.gated, "linear_argmax: the weight was packed for gated_linear");
    check(in.shape[1] == weight.columns, "linear_argmax: x must have one column for each input of the weight");
    hold(weight);
    const Size rows = rows_of(in);
    const Allowed bits = read_allowed(allowed, rows, weight.rows);
    const Result out = result(Type::int32, rows, 1, 1);
    const auto records = memory_for_records(rows, weight);
    const auto sums = scratch_of_threads(sums_of_blocks(rows.capacity) * 4);
    const auto bests = scratch(BestOfRows::bytes(pool_.size(), rows.capacity));
    const std::vector<Attempt> attempts = attempts_by(weight.shortlists, in, &weight);
    const auto promises = scratch(promise_bytes(attempts, rows.capacity));
    IntegerProduct product = product_of(in, weight, kIntegerColumns);
    const Attempt* likely = attempt_for(attempts, rows.capacity);
    const WeightStream stream{spans_of(product.args, 1), {}}; // nothing follows the head
    follow(likely ? spans_of(likely->rough.args, 1) : stream.own);
    issue([this, product, attempts, stream, rows, bits, memory = records.data(), own = reinterpret_cast<float*>(sums.data()),
           found = bests.data(), promised = promises.data(), places = out.ints()] {
        const int64_t count = rows.now();
        IntegerProduct exact = product;
        Promises tops;
        if (Shortlist* list = promise(attempts, count, promised, bits.now(), bits.words, nullptr, tops)) {
            const BestOfRows best(found, pool_.size(), count, bits.now(), bits.words);
            const IntegerKernels& kernels = quantize_rows(exact, {0, count}, memory, true);
            const auto compute = [&](int64_t row, int64_t block, int thread) {
                IntegerLinearArgs now = exact.args;
                now.out = own + thread * sums_of_blocks(count);
                now.first_row = row;
                now.first_column = block * kIntegerColumns;
                kernels.linear(now, row, row + 1, block, block + 1);
                kernels_->best_of_block(best.of(thread, now, 1, std::min<int64_t>(kIntegerColumns, now.n - now.first_column)));
            };
            if (settle(*list, tops, best, compute)) return best.merge(places);
        }
        const IntegerKernels& kernels = quantize_rows(exact, {0, count}, memory);
        const IntegerCut cut = cut_integer(kernels, exact.args, pool_.size());
        const BestOfRows best(found, pool_.size(), count, bits.now(), bits.words);
        over_integer_units(exact.args, cut, stream, [&](IntegerLinearArgs now, int64_t unit, int thread) {
            now.out = own + thread * sums_of_blocks(count);
            over_blocks_of_unit(kernels, now, cut, unit, 1, [&](const IntegerLinearArgs& a, int64_t some, int64_t columns) {
                kernels_->best_of_block(best.of(thread, a, some, columns));
            });
        });
        best.merge(places);
    });
    return out.array;
}

} // namespace octavo
