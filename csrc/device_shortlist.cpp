#include "shortlist.hpp"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "best_of_rows.hpp"
#include "device_parallel.hpp"

namespace octavo {

namespace {

constexpr int64_t kMostInputs = 2048;  // with more, lengths tell less about products: too many blocks would be computed twice
constexpr int64_t kLeastOutputs = 2048;
constexpr int64_t kMostPause = 64;
constexpr int64_t kRowsWithoutGain = 8; // of two levels: memory is what they wait for, and one level reads as much
static_assert(kColumnBlock == kIntegerColumns && kMostInputs / kGroup <= kGroupsWithSpans);

// Of numbers times sizes.
float length_of(const float* numbers, const std::vector<float>& sizes) {
    constexpr int64_t kLanes = 16;
    float squares[kLanes] = {}, sum = 0;
    for (size_t i = 0; i < sizes.size(); i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const float sized = numbers[i + lane] * sizes[i + lane];
            squares[lane] += sized * sized;
        }
    }
    for (float square : squares) sum += square;
    return std::sqrt(sum) * kLengthTimes + kLengthMore;
}

// What sums of so many products lose by rounding, of the product of the lengths; and what comes with the bound itself.
float rounding_of(int64_t inputs) { return static_cast<float>(inputs + 64) * 0x1p-23f; }

// The roots of how large products with inputs are in a sixteenth of the blocks, relative to all. Any sizes are right that are not
// far from one.
template <class Read> std::vector<float> sizes_of_inputs(int64_t rows, int64_t columns, const std::vector<float>& inputs, const Read& read) {
    constexpr int64_t kEvery = 16;
    constexpr double kMost = 16;
    std::vector<float> numbers(kColumnBlock * columns), sizes;
    std::vector<double> squares(columns);
    for (int64_t first = 0; first < rows; first += kEvery * kColumnBlock) {
        const int64_t count = std::min<int64_t>(kColumnBlock, rows - first);
        read(first, count, numbers.data());
        for (int64_t row = 0; row < count; ++row) {
            for (int64_t i = 0; i < columns; ++i) squares[i] += static_cast<double>(numbers[row * columns + i]) * numbers[row * columns + i];
        }
    }
    if (!inputs.empty()) {
        for (int64_t i = 0; i < columns; ++i) squares[i] *= static_cast<double>(inputs[i]) * inputs[i];
    }
    const double mean = std::accumulate(squares.begin(), squares.end(), 0.0) / static_cast<double>(columns);
    for (const double square : squares) {
        const double size = std::sqrt(std::sqrt(square / mean));
        sizes.push_back(static_cast<float>(size > 0 ? std::clamp(size, 1 / kMost, kMost) : 1.0)); // 1 if it is no number
    }
    return sizes;
}

// How many times as large as the least of a group's sizes the largest is, at most.
float largest_step(const std::vector<float>& sizes) {
    float step = 1;
    for (auto group = sizes.begin(); group != sizes.end(); group += kGroup) {
        const auto [least, most] = std::minmax_element(group, group + kGroup);
        step = std::max(step, *most / *least);
    }
    return step;
}

// Inputs by their sizes.
std::vector<int32_t> order_of(const std::vector<float>& sizes) {
    std::vector<int32_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return sizes[a] < sizes[b]; });
    return order;
}

// Spans of so many groups of inputs in their order. The largest inputs differ most, and whoever shares a scale with them loses most:
// the last spans are one group, two, four and so on.
SpanEnds spans_of_groups(int64_t groups) {
    SpanEnds ends = 0;
    for (int64_t left = groups, span = 1; left > 0; span = std::min(2 * span, kLongestSpan)) {
        ends |= SpanEnds{1} << (left - 1);
        left -= left <= kLongestSpan && left < 3 * span ? left : span;
    }
    return ends;
}

// The rows of one block of a matrix: as they are, as fewer bits make them, and what of that are minimums.
struct BlockRows {
    explicit BlockRows(int64_t inputs)
        : exact(kColumnBlock * inputs), rough(exact.size()), low(exact.size()), bytes(exact.size()), scales(exact.size() / kGroup),
          minimums(scales.size()), largest(scales.size()) {}

    std::vector<float> exact, rough, low, ordered;
    std::vector<uint8_t> bytes;
    std::vector<uint16_t> scales, minimums;
    std::vector<float> largest; // of the span that a group is in
    std::vector<char> packed;

    // In the order of the list, and the largest of its spans.
    void put_in_spans(const Shortlist& list, int64_t count, int64_t groups) {
        ordered.resize(exact.size());
        put_in_order(exact.data(), list.order, 0, count, ordered.data());
        exact.swap(ordered);
        for (int64_t g = 0; g < count * groups; ++g) {
            uint32_t most = 0; // bits of magnitudes compare like magnitudes
            for (int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) most = std::max(most, std::bit_cast<uint32_t>(exact[i]) & 0x7FFFFFFF);
            largest[g] = std::bit_cast<float>(most);
        }
        for (int64_t row = 0; row < count; ++row) share_largest(largest.data() + row * groups, groups, list.ends);
    }

    // A block of integers.
    void read(const IntegerKernels& kernels, const char* block, int64_t count, int64_t groups, int bits) {
        int32_t places[kColumnBlock];
        std::iota(places, places + kColumnBlock, 0);
        kernels.embedding({places, block, rough.data(), groups, bits}, 0, count);
        if (bits >= 6) return;
        // Where all values are zeros, nothing is left but minimums.
        const int64_t bytes_of_group = group_bytes(bits);
        packed.assign(block, block + groups * bytes_of_group);
        for (int64_t g = 0; g < groups; ++g) std::memset(packed.data() + g * bytes_of_group, 0, 2 * bits * kLine);
        kernels.embedding({places, packed.data(), low.data(), groups, bits}, 0, count);
    }
    // The length of a row of integers whose values times scales and minimums are summed apart, and may be larger than what they come
    // to: no less than that of both.
    float length_of_parts(int64_t at, const std::vector<float>& sizes, int bits) const {
        return length_of(rough.data() + at, sizes) + (bits < 6 ? 2 * length_of(low.data() + at, sizes) : 0.0f);
    }
};

void check_inputs(const std::vector<float>& inputs, int64_t columns) {
    check(inputs.empty() || static_cast<int64_t>(inputs.size()) == columns, "shortlist: inputs must have one size for each column");
}

// Whether there is nothing yet that a weight is worth.
template <class Weight> bool wants_list(const Weight& w) {
    return w.shortlists.empty() && !w.gated && w.columns > 0 && w.columns <= kMostInputs && w.columns % kGroup == 0 && w.rows >= kLeastOutputs;
}

} // namespace

template <class Weight, class Call> void Device::add_list(Weight& weight, std::shared_ptr<Shortlist> list, const Call& call) {
    std::atomic<bool> possible = true;
    run([&] {
        std::vector<std::unique_ptr<BlockRows>> memory(pool_.size());
        over_units(divide_up(weight.rows, kColumnBlock), [&](int64_t block, int thread) {
            if (!possible.load(std::memory_order_relaxed)) return;
            if (!memory[thread]) memory[thread] = std::make_unique<BlockRows>(weight.columns);
            const int64_t first = block * kColumnBlock, count = std::min<int64_t>(kColumnBlock, weight.rows - first);
            bool sound = call(*memory[thread], first, count);
            for (int64_t n = first; n < first + count; ++n) {
                sound = sound && list->per_input[n] < Shortlist::kLongest && list->per_error[n] < Shortlist::kLongest;
            }
            if (!sound) possible = false;
        });
    });
    if (possible) weight.shortlists.push_back(std::move(list));
}

template <class Weight, class Read>
void Device::add_copy(Weight& weight, std::shared_ptr<Shortlist> list, int bits, bool same_rows, const std::vector<float>& sizes,
                      const Read& read) {
    const int64_t k = weight.columns, groups = k / kGroup;
    list->rough = std::make_unique<IntegerWeight>(weight.rows, groups, bits, false, false, weights_.take(integer_weight_bytes(weight.rows, groups, bits)));
    const float rounding = rounding_of(k);
    add_list(weight, list, [&](BlockRows& own, int64_t first, int64_t count) {
        read(first, count, own.exact.data());
        if (list->ends) own.put_in_spans(*list, count, groups);
        uint16_t* minimums = bits == 8 ? nullptr : own.minimums.data();
        const float* largest = list->ends ? own.largest.data() : nullptr;
        const QuantizeWeightsArgs quantize{own.exact.data(), own.bytes.data(), own.scales.data(), minimums, false, bits, largest};
        if (integer_->quantize_weights(quantize, 0, count * groups) != QuantizeProblem::none) return false;
        char* to = list->rough->memory.data() + first / kColumnBlock * groups * group_bytes(bits);
        pack_integer_rows({bits, own.bytes.data(), own.scales.data(), minimums, count, groups}, {to, count}, 0, count);
        own.read(*integer_, to, count, groups, bits);
        for (int64_t at = 0, n = first; n < first + count; ++n, at += k) {
            const float length = length_of(own.exact.data() + at, sizes), parts = own.length_of_parts(at, sizes, bits);
            for (int64_t i = at; i < at + k; ++i) own.exact[i] -= own.rough[i];
            list->per_input[n] = length_of(own.exact.data() + at, sizes) + rounding * (length + parts);
            // Rows that are the same in both products differ from x by as much.
            list->per_error[n] = same_rows ? list->per_input[n] : parts + rounding * parts;
        }
        return true;
    });
}

void Device::shortlist(PackedWeight& weight, int64_t most_bytes, const std::vector<float>& inputs) {
    check_inputs(inputs, weight.columns);
    check_packing(weight);
    if (!wants_list(weight) || integer_weight_bytes(weight.rows, weight.columns / kGroup, 8) > most_bytes) return;
    const auto read = [&](int64_t first, int64_t count, float* to) {
        int32_t ids[kColumnBlock];
        std::iota(ids, ids + count, static_cast<int32_t>(first));
        const EmbeddingArgs read{ids, weight.memory.data(), to, weight.rows, weight.columns, weight.bf16, weight.compact.get()};
        (weight.compact ? kernels_->embedding_compact : kernels_->embedding)(read, 0, count);
    };
    std::vector<float> sizes = sizes_of_inputs(weight.rows, weight.columns, inputs, read);
    std::vector<int32_t> order = order_of(sizes);
    std::sort(sizes.begin(), sizes.end()); // as theirs is
    auto list = std::make_shared<Shortlist>(weight.rows, sizes);
    list->order = std::move(order);
    list->ends = spans_of_groups(weight.columns / kGroup);
    // Tiles of more rows are as fast as bytes, and without vectors numbers are faster.
    if (kernels_->activation == Activation::bf16_padded || integer_ == integer_generic()) list->most_rows = kFewRows - 1;
    add_copy(weight, list, 8, false, sizes, read);
    if (!weight.compact || !weight.compact->exponents || weight.shortlists.empty()) return;
    // The exact product is one of whole numbers, too: what they lose of x comes to what quantizing has changed.
    const float most = *std::max_element(sizes.begin(), sizes.end());
    for (int64_t n = 0; n < weight.rows; ++n) {
        list->per_input[n] += weight.errors[n] * most;
        list->per_error[n] += list->per_input[n]; // no less than the length of either
    }
}

void Device::shortlist_integer(IntegerWeight& weight, int64_t most_bytes, const std::vector<float>& inputs) {
    check_inputs(inputs, weight.columns);
    check_packing(weight);
    if (!wants_list(weight)) return;
    const int64_t k = weight.columns, groups = k / kGroup;
    const auto read = [&](int64_t first, int64_t count, float* to) {
        int32_t ids[kColumnBlock];
        std::iota(ids, ids + count, static_cast<int32_t>(first));
        integer_->embedding({ids, weight.memory.data(), to, groups, weight.bits}, 0, count);
    };
    const IntegerKernels& few = integer_->few ? *integer_->few() : *integer_;
    const bool copied = weight.bits == 8 && few.rows_at_memory > 0 && integer_weight_bytes(weight.rows, groups, 5) <= most_bytes;
    if (!copied && activation_levels_ == 1) return;
    const std::vector<float> sizes = sizes_of_inputs(weight.rows, k, inputs, read);
    if (copied) {
        auto list = std::make_shared<Shortlist>(weight.rows, sizes);
        list->levels = activation_levels_;
        list->most_rows = few.rows_at_memory - (activation_levels_ - 1);
        add_copy(weight, list, 5, true, sizes, read);
    }
    if (activation_levels_ == 1) return;
    auto list = std::make_shared<Shortlist>(weight.rows, sizes);
    list->least_rows = kRowsWithoutGain + 1;
    const float rounding = rounding_of(k);
    // Numbers of two levels are within 1 / 65024 of a group's largest of what they stand for.
    const float change = 1e-4f * largest_step(sizes);
    add_list(weight, list, [&](BlockRows& own, int64_t first, int64_t count) {
        own.read(*integer_, weight.memory.data() + first / kColumnBlock * groups * group_bytes(weight.bits), count, groups, weight.bits);
        for (int64_t at = 0, n = first; n < first + count; ++n, at += k) {
            const float length = length_of(own.rough.data() + at, sizes), parts = own.length_of_parts(at, sizes, weight.bits);
            list->per_input[n] = change * length + 2 * rounding * parts;
            list->per_error[n] = length + rounding * parts;
        }
        return true;
    });
}

bool Device::settle(Shortlist& list, const Promises& promises, const BestOfRows& best, const ComputeBlock& compute) {
    const int64_t rows = promises.rows, blocks = promises.blocks;
    std::atomic<int64_t> left = 0;
    over_spans(rows, [&](int64_t row, int thread) {
        float* tops = promises.tops + row * promises.row_stride;
        const int64_t likeliest = kernels_->argmax(tops, blocks);
        promises.reached[row] = std::numeric_limits<float>::infinity();
        if (likeliest < 0) return; // nothing is allowed
        compute(row, likeliest, thread);
        tops[likeliest] = -std::numeric_limits<float>::infinity();
        const float reached = promises.reached[row] = best.reached(thread, row);
        int64_t count = 0;
        for (int64_t block = 0; block < blocks; ++block) count += tops[block] >= reached;
        if (count == 0) promises.reached[row] = std::numeric_limits<float>::infinity();
        else left.fetch_add(count, std::memory_order_relaxed);
    });
    if (left > blocks * std::max(rows, kFewRows) / 16) {
        ++list.given_up;
        list.pause = list.next_pause;
        list.next_pause = std::min(2 * list.next_pause, kMostPause);
        return false;
    }
    ++list.settled;
    list.next_pause = 1;
    if (left == 0) return true;
    // Blocks by turns, as those of the likeliest tokens of all lie side by side.
    const int64_t turns = divide_up(pool_.size(), rows);
    over_spans(rows * turns, [&](int64_t unit, int thread) {
        const int64_t row = unit / turns;
        if (std::isinf(promises.reached[row])) return;
        for (int64_t block = unit % turns; block < blocks; block += turns) {
            if (promises.tops[row * promises.row_stride + block] >= promises.reached[row]) compute(row, block, thread);
        }
    });
    return true;
}

} // namespace octavo
