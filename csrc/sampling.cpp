#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace octavo {

namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kMinusInfinity = -kInfinity;
constexpr float kLowest = std::numeric_limits<float>::lowest(); // of logits that can be drawn

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

double uniform(uint64_t seed, int64_t position) {
    uint64_t key = mix(seed + 0x9E3779B97F4A7C15u);
    uint64_t word = mix(key ^ (static_cast<uint64_t>(position) * 0xD1B54A32D192ED03u));
    return static_cast<double>(mix(word + 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

float clean(float x) { return std::isnan(x) ? kMinusInfinity : x; }

double total(const std::vector<double>& sums) {
    double all = 0;
    for (double sum : sums) all += sum;
    return all;
}

// Likeliest first, lowest id among equals.
struct Likelier {
    const float* logits;
    bool operator()(int32_t a, int32_t b) const {
        float x = clean(logits[a]), y = clean(logits[b]);
        return x > y || (x == y && a < b);
    }
};

// A value that at least k logits reach: the k-th largest of the blocks' maxima.
float reached_by(int64_t k, LogitsScratch& s) {
    if (k < 1 || k > static_cast<int64_t>(s.maxima.size())) return kMinusInfinity;
    s.ordered = s.maxima;
    std::nth_element(s.ordered.begin(), s.ordered.begin() + (k - 1), s.ordered.end(), std::greater<float>());
    return s.ordered[k - 1];
}

// The first place whose share, with all before it, passes u of the whole; -1 if nothing is left.
int32_t place_of(int64_t n, double u, const LogitsScratch& s) {
    const double target = u * total(s.sums);
    double below = 0, before = 0;
    int64_t block = -1;
    for (size_t b = 0; b < s.sums.size() && below <= target; ++b) {
        if (s.sums[b] == 0) continue;
        block = static_cast<int64_t>(b);
        before = below;
        below += s.sums[b];
    }
    if (block < 0) return -1;
    int64_t last = -1;
    for (int64_t i = block * kShareBlock; i < std::min<int64_t>(n, (block + 1) * kShareBlock); ++i) {
        if (s.shares[i] == 0.0f) continue;
        before += s.shares[i];
        last = i;
        if (before > target) break;
    }
    return static_cast<int32_t>(last);
}

// The likeliest logits: those above `least`, and those that equal it before the place `end`.
struct Front {
    float least;
    int64_t end;
    Reached all;
};

// The shortest front that is enough, within one that is. Halves what lies between a logit that reaches too little and one that reaches
// enough until that is few logits, and sorts those.
template <class Enough>
Front shortest_front(const KernelTable& kernels, const DrawArgs& a, float max, const Front& given, const Enough& enough, LogitsScratch& s) {
    constexpr int64_t kFew = 128;
    float low = given.least, high = kInfinity, step = 2 * a.temperature;
    Reached above{0, 0};
    for (int64_t reached = given.all.count; reached - above.count > kFew;) {
        float middle = low + (std::min(high, max) - low) / 2;
        if (low == kLowest) {
            middle = max - step;
            step *= 2;
        }
        if (!(middle > low && middle < high)) break; // equal ones, or what no sum has room for
        const Reached now = kernels.reached(a.logits, s.shares.data(), s.maxima.data(), a.n, middle);
        if (enough(now)) {
            low = middle;
            reached = now.count;
        } else {
            high = middle;
            above = now;
        }
    }
    const auto begin = s.ids.begin(), end = begin + kernels.places(a.logits, s.maxima.data(), a.n, low, high, s.ids.data());
    std::sort(begin, end, Likelier{a.logits});
    for (auto id = begin; id != end; ++id) {
        above = {above.count + 1, above.share + s.shares[*id]};
        if (enough(above)) return {clean(a.logits[*id]), *id + 1, above};
        if (above.count == given.all.count) break;
    }
    return given; // all there are, or a sum was rounded
}

bool cuts_by_rank(const DrawArgs& a) { return a.top_k > 0 && a.top_k < a.n; }

// Makes the shares that top-k, then top-p, then min-p remove nothing.
void keep_survivors(const KernelTable& kernels, const DrawArgs& a, float max, LogitsScratch& s) {
    Front front{kLowest, a.n, {a.n, total(s.sums)}};
    kernels.block_maxima(a.logits, a.n, s.maxima.data());
    if (cuts_by_rank(a)) {
        front.least = std::max(kLowest, reached_by(a.top_k, s));
        front.all = kernels.reached(a.logits, s.shares.data(), s.maxima.data(), a.n, front.least); // few where most are masked
        front = shortest_front(kernels, a, max, front, [&](const Reached& r) { return r.count >= a.top_k; }, s);
    }
    if (a.top_p < 1) {
        const double limit = static_cast<double>(a.top_p) * front.all.share;
        front = shortest_front(kernels, a, max, front, [&](const Reached& r) { return r.share >= limit; }, s);
    }
    kernels.keep({a.logits, s.maxima.data(), a.n, front.least, front.end, a.min_p, s.shares.data(), s.sums.data()});
}

} // namespace

void LogitsScratch::resize(int64_t n) {
    shares.resize(n);
    ids.resize(n);
    sums.resize((n + kShareBlock - 1) / kShareBlock);
    maxima.resize((n + kMaxBlock - 1) / kMaxBlock);
}

void adjust(const RowBias& bias, const RowPenalties& p, float* logits, int64_t n, LogitsScratch& s) {
    constexpr int32_t kSeen = 1 << 30; // and below it how often in the output
    const auto known = [n](int32_t token) { return token >= 0 && token < n; };
    for (int64_t i = 0; i < bias.count; ++i) {
        if (known(bias.tokens[i])) logits[bias.tokens[i]] += bias.values[i];
    }
    if (static_cast<int64_t>(s.occurrences.size()) < n) s.occurrences.resize(n);
    for (int64_t i = 0; i < p.count; ++i) {
        if (!known(p.tokens[i])) continue;
        int32_t& times = s.occurrences[p.tokens[i]];
        times = (times | kSeen) + (i >= p.output);
    }
    for (int64_t i = 0; i < p.count; ++i) {
        if (!known(p.tokens[i])) continue;
        const int32_t times = std::exchange(s.occurrences[p.tokens[i]], 0);
        if (times == 0) continue; // done where it was met first
        float& x = logits[p.tokens[i]];
        x = x > 0 ? x / p.repetition : x * p.repetition;
        if (times == kSeen) continue;
        x -= p.frequency * static_cast<float>(times - kSeen);
        x -= p.presence;
    }
}

int32_t draw(const KernelTable& kernels, DrawArgs a, LogitsScratch& s) {
    int64_t best;
    if (a.allowed) {
        s.masked.resize(a.n);
        best = kernels.masked_argmax(a.logits, a.allowed, a.n, s.masked.data());
        a.logits = s.masked.data();
    } else {
        best = kernels.argmax(a.logits, a.n);
    }
    if (a.bias.count + a.penalties.count > 0 && best >= 0) {
        if (!a.allowed) s.masked.assign(a.logits, a.logits + a.n);
        adjust(a.bias, a.penalties, s.masked.data(), a.n, s);
        a.logits = s.masked.data();
        best = kernels.argmax(a.logits, a.n);
    }
    if (a.temperature < kGreedyTemperature || best < 0) return static_cast<int32_t>(best);
    const float max = a.logits[best];
    s.resize(a.n);
    kernels.shares(a.logits, a.n, max, 1.0f / a.temperature, s.shares.data(), s.sums.data());
    if (cuts_by_rank(a) || a.top_p < 1 || a.min_p > 0) keep_survivors(kernels, a, max, s);
    const int32_t place = place_of(a.n, uniform(a.seed, a.position), s);
    return place < 0 ? static_cast<int32_t>(best) : place;
}

void top_logprobs(const KernelTable& kernels, const TopLogprobsArgs& a, LogitsScratch& s) {
    s.resize(a.n);
    kernels.block_maxima(a.logits, a.n, s.maxima.data());
    const float max = *std::max_element(s.maxima.begin(), s.maxima.end());
    kernels.shares(a.logits, a.n, max, 1.0f, s.shares.data(), s.sums.data());
    double log_total = std::log(total(s.sums));
    auto logprob = [&](int32_t id) {
        return static_cast<float>(static_cast<double>(clean(a.logits[id])) - static_cast<double>(max) - log_total);
    };
    *a.chosen_logprob = logprob(a.chosen);
    float mine = clean(a.logits[a.chosen]);
    int32_t rank = 1;
    for (int64_t i = 0; i < a.n; ++i) rank += clean(a.logits[i]) > mine;
    for (int64_t i = 0; i < a.chosen; ++i) rank += clean(a.logits[i]) == mine;
    *a.chosen_rank = rank;
    if (a.num == 0) return;
    const float least = reached_by(a.num, s);
    const int64_t count = kernels.places(a.logits, s.maxima.data(), a.n, least, kInfinity, s.ids.data());
    std::partial_sort(s.ids.begin(), s.ids.begin() + a.num, s.ids.begin() + count, Likelier{a.logits});
    for (int64_t i = 0; i < a.num; ++i) {
        a.ids[i] = s.ids[i];
        a.logprobs[i] = logprob(s.ids[i]);
    }
}

} // namespace octavo
