#include "shortlist.hpp"

#include <atomic>
#include <cmath>
#include <cstring>

#include "best_of_rows.hpp"
#include "device_parallel.hpp"

namespace octavo {

namespace {

static_assert(kColumnBlock == kIntegerColumns);

constexpr int64_t kMostInputs = 2048;  // with more, lengths tell less about products: too many blocks would be computed twice
constexpr int64_t kLeastOutputs = 2048;
constexpr int64_t kMostPause = 64;
constexpr int64_t kRowsWithoutGain = 8; // of two levels: memory is what they wait for, and one level reads as much

template <class Number> float length_of(int64_t count, const Number& number) {
    constexpr int kLanes = 16;
    float squares[kLanes] = {}, sum = 0;
    for (int64_t i = 0; i < count; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) squares[lane] += number(i + lane) * number(i + lane);
    }
    for (float square : squares) sum += square;
    return std::sqrt(sum) * kLengthTimes + kLengthMore;
}

float length_of(const float* x, int64_t count) {
    return length_of(count, [x](int64_t i) { return x[i]; });
}

// What sums of so many products lose by rounding, of the product of the lengths; and what comes with the bound itself.
float rounding_of(int64_t inputs) { return static_cast<float>(inputs + 64) * 0x1p-23f; }

// The rows of one block of a matrix, as numbers and as bytes make them.
struct BlockRows {
    explicit BlockRows(int64_t inputs) : exact(kColumnBlock * inputs), rough(exact.size()), bytes(exact.size()) {}

    std::vector<float> exact, rough;
    std::vector<uint8_t> bytes;
    uint16_t scales[kColumnBlock * kMostInputs / kGroup];
};

} // namespace

bool Device::shortlists(int64_t rows, int64_t columns, bool gated) const {
    return !gated && columns > 0 && columns <= kMostInputs && columns % kGroup == 0 && rows >= kLeastOutputs;
}

template <class Call> std::shared_ptr<Shortlist> Device::measured(std::shared_ptr<Shortlist> list, int64_t rows, int64_t columns, const Call& call) {
    std::atomic<bool> possible = true;
    run([&] {
        std::vector<std::unique_ptr<BlockRows>> memory(pool_.size());
        over_units(divide_up(rows, kColumnBlock), [&](int64_t block, int thread) {
            if (!possible.load(std::memory_order_relaxed)) return;
            if (!memory[thread]) memory[thread] = std::make_unique<BlockRows>(columns);
            const int64_t first = block * kColumnBlock, count = std::min<int64_t>(kColumnBlock, rows - first);
            bool sound = call(*memory[thread], block, count, list->per_input.data() + first, list->per_error.data() + first);
            for (int64_t n = first; n < first + count; ++n) {
                sound = sound && list->per_input[n] < Shortlist::kLongest && list->per_error[n] < Shortlist::kLongest;
            }
            if (!sound) possible = false;
        });
    });
    return possible ? std::move(list) : nullptr;
}

void Device::shortlist(PackedWeight& weight, int64_t most_bytes) {
    if (weight.shortlist || !shortlists(weight.rows, weight.columns, weight.gated)) return;
    const int64_t k = weight.columns, groups = k / kGroup;
    if (integer_weight_bytes(weight.rows, groups, 8) > most_bytes) return;
    auto list = std::make_shared<Shortlist>(weight.rows);
    list->rough = std::make_unique<IntegerWeight>(weight.rows, groups, 8, false, weights_);
    // Tiles of more rows are as fast as bytes, and without vectors numbers are faster.
    if (kernels_->activation == Activation::bf16_padded || integer_ == integer_generic()) list->most_rows = kFewRows - 1;
    const float rounding = rounding_of(k);
    char* blocks = list->rough->memory.data();
    weight.shortlist = measured(list, weight.rows, k, [&](BlockRows& own, int64_t block, int64_t count, float* per_input, float* per_error) {
        int32_t ids[kColumnBlock], places[kColumnBlock];
        for (int i = 0; i < kColumnBlock; ++i) ids[i] = static_cast<int32_t>(block * kColumnBlock) + (places[i] = i);
        const EmbeddingArgs read{ids, weight.memory.data(), own.exact.data(), weight.rows, k, weight.bf16, weight.compact.get()};
        (weight.compact ? kernels_->embedding_compact : kernels_->embedding)(read, 0, count);
        const QuantizeWeightsArgs quantize{own.exact.data(), own.bytes.data(), own.scales, nullptr, false};
        if (integer_->quantize_weights(quantize, 0, count * groups) != QuantizeProblem::none) return false;
        char* to = blocks + block * groups * group_bytes(8);
        pack_integer_blocks({8, own.bytes.data(), own.scales, nullptr, count, groups}, false, to, 0, 1);
        integer_->embedding({places, to, own.rough.data(), groups, 8}, 0, count);
        for (int64_t i = 0; i < count; ++i) {
            const float *w = own.exact.data() + i * k, *bytes = own.rough.data() + i * k;
            const float length = length_of(w, k), rough = length_of(bytes, k);
            const float apart = length_of(k, [=](int64_t at) { return w[at] - bytes[at]; });
            per_input[i] = apart + rounding * (length + rough);
            per_error[i] = rough + rounding * rough;
        }
        return true;
    });
}

void Device::shortlist_integer(IntegerWeight& weight) {
    if (weight.shortlist || activation_levels_ == 1 || !shortlists(weight.rows, weight.columns, weight.gated)) return;
    auto list = std::make_shared<Shortlist>(weight.rows);
    list->least_rows = kRowsWithoutGain + 1;
    const int64_t k = weight.columns, groups = k / kGroup, group = group_bytes(weight.bits);
    const float rounding = rounding_of(k);
    weight.shortlist = measured(list, weight.rows, k, [&](BlockRows& own, int64_t block, int64_t count, float* per_input, float* per_error) {
        int32_t places[kColumnBlock];
        for (int i = 0; i < kColumnBlock; ++i) places[i] = i;
        const char* from = weight.memory.data() + block * groups * group;
        integer_->embedding({places, from, own.rough.data(), groups, weight.bits}, 0, count);
        // Where all values are zeros, nothing is left but minimums.
        std::vector<char> minimums(from, from + groups * group);
        for (int64_t g = 0; g < groups; ++g) std::memset(minimums.data() + g * group, 0, 2 * weight.bits * kLine);
        if (weight.bits < 6) integer_->embedding({places, minimums.data(), own.exact.data(), groups, weight.bits}, 0, count);
        for (int64_t i = 0; i < count; ++i) {
            const float length = length_of(own.rough.data() + i * k, k);
            // Values times scales and minimums are rounded apart, and may be larger than what they come to.
            const float parts = length + (weight.bits < 6 ? 2 * length_of(own.exact.data() + i * k, k) : 0.0f);
            // Numbers of two levels are within 1 / 65024 of a group's largest of what they stand for.
            per_input[i] = 1e-4f * length + 2 * rounding * parts;
            per_error[i] = length + rounding * parts;
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
    over_spans(rows, [&](int64_t row, int thread) {
        if (std::isinf(promises.reached[row])) return;
        for (int64_t block = 0; block < blocks; ++block) {
            if (promises.tops[row * promises.row_stride + block] >= promises.reached[row]) compute(row, block, thread);
        }
    });
    return true;
}

} // namespace octavo
