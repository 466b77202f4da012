#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace octavo {

namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

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

// A value that at least k logits reach: the k-th largest of the blocks' maxima, which it leaves in s.maxima.
float reached_by(const KernelTable& kernels, const float* logits, int64_t n, int64_t k, LogitsScratch& s) {
    kernels.block_maxima(logits, n, s.maxima.data());
    if (k < 1 || k > static_cast<int64_t>(s.maxima.size())) return kMinusInfinity;
    s.ordered = s.maxima;
    std::nth_element(s.ordered.begin(), s.ordered.begin() + (k - 1), s.ordered.end(), std::greater<float>());
    return s.ordered[k - 1];
}

int32_t draw_from_all(int64_t n, double u, const LogitsScratch& s) {
    double target = u * total(s.sums), below = 0;
    int64_t block = 0, blocks = static_cast<int64_t>(s.sums.size());
    while (block + 1 < blocks && below + s.sums[block] <= target) below += s.sums[block++];
    int64_t last = 0;
    for (int64_t i = block * kShareBlock; i < std::min<int64_t>(n, (block + 1) * kShareBlock); ++i) {
        if (s.shares[i] == 0.0f) continue;
        below += s.shares[i];
        last = i;
        if (below > target) break;
    }
    return static_cast<int32_t>(last);
}

// Into s.ids, ascending, the ids whose value reaches `least`; s.maxima holds the largest value of each block.
void collect(const float* values, int64_t n, float least, LogitsScratch& s) {
    s.ids.clear();
    for (int64_t block = 0; block * kMaxBlock < n; ++block) {
        if (s.maxima[block] < least) continue;
        for (int64_t i = block * kMaxBlock; i < std::min(n, (block + 1) * kMaxBlock); ++i) {
            if (clean(values[i]) >= least) s.ids.push_back(static_cast<int32_t>(i));
        }
    }
}

double mass(const LogitsScratch& s) {
    double sum = 0;
    for (int32_t id : s.ids) sum += s.shares[id];
    return sum;
}

// Keeps the shortest front of s.ids, likeliest first, whose shares reach `limit`; sorts no more than that takes.
void keep_front(const float* logits, double limit, LogitsScratch& s) {
    double before = 0;
    size_t done = 0;
    for (size_t chunk = 64; done < s.ids.size(); chunk *= 4) {
        const auto begin = s.ids.begin() + static_cast<int64_t>(done);
        const auto end = s.ids.begin() + static_cast<int64_t>(std::min(s.ids.size(), done + chunk));
        if (end != s.ids.end()) std::nth_element(begin, end, s.ids.end(), Likelier{logits});
        std::sort(begin, end, Likelier{logits});
        for (auto id = begin; id != end; ++id, ++done) {
            if (done > 0 && before >= limit) return s.ids.resize(done);
            before += s.shares[*id];
        }
    }
}

void keep_top_k(const KernelTable& kernels, const DrawArgs& a, LogitsScratch& s) {
    collect(a.logits, a.n, reached_by(kernels, a.logits, a.n, a.top_k, s), s);
    if (static_cast<int64_t>(s.ids.size()) > a.top_k) {
        std::nth_element(s.ids.begin(), s.ids.begin() + a.top_k, s.ids.end(), Likelier{a.logits});
        s.ids.resize(a.top_k);
    }
    std::sort(s.ids.begin(), s.ids.end()); // sums are in the order of ids
    if (a.top_p < 1) keep_front(a.logits, static_cast<double>(a.top_p) * mass(s), s);
}

void keep_top_p(const DrawArgs& a, LogitsScratch& s) {
    const double all = total(s.sums), limit = static_cast<double>(a.top_p) * all;
    // What lies below the second share is together less than what top-p removes; mostly the first is low enough.
    const double certain = 0.5 * (1.0 - a.top_p) * all / static_cast<double>(a.n);
    for (double least : {1e-3, certain}) {
        collect(s.shares.data(), a.n, std::max(static_cast<float>(least), std::numeric_limits<float>::min()), s);
        if (mass(s) > limit) break;
    }
    keep_front(a.logits, limit, s);
}

// Into s.ids, ascending, the ids that top-k, then top-p, then min-p leave.
void keep_survivors(const KernelTable& kernels, const DrawArgs& a, bool by_rank, LogitsScratch& s) {
    if (by_rank) {
        keep_top_k(kernels, a, s);
    } else {
        kernels.block_maxima(s.shares.data(), a.n, s.maxima.data());
        if (a.top_p < 1) keep_top_p(a, s);
        else collect(s.shares.data(), a.n, std::max(a.min_p, std::numeric_limits<float>::min()), s);
    }
    std::erase_if(s.ids, [&](int32_t id) { return s.shares[id] < a.min_p || s.shares[id] == 0.0f; });
    std::sort(s.ids.begin(), s.ids.end());
}

int32_t draw_from_survivors(double u, const LogitsScratch& s) {
    const double target = u * mass(s);
    double below = 0;
    for (int32_t id : s.ids) {
        below += s.shares[id];
        if (below > target) return id;
    }
    return s.ids.back();
}

} // namespace

void LogitsScratch::resize(int64_t n) {
    shares.resize(n);
    sums.resize((n + kShareBlock - 1) / kShareBlock);
    maxima.resize((n + kMaxBlock - 1) / kMaxBlock);
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
    if (a.temperature < kGreedyTemperature || best < 0) return static_cast<int32_t>(best);
    const float max = a.logits[best];
    s.resize(a.n);
    kernels.shares(a.logits, a.n, max, 1.0f / a.temperature, s.shares.data(), s.sums.data());
    double u = uniform(a.seed, a.position);
    bool by_rank = a.top_k > 0 && a.top_k < a.n;
    if (!by_rank && a.top_p >= 1 && a.min_p <= 0) return draw_from_all(a.n, u, s);
    keep_survivors(kernels, a, by_rank, s);
    return s.ids.empty() ? static_cast<int32_t>(best) : draw_from_survivors(u, s);
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
    collect(a.logits, a.n, reached_by(kernels, a.logits, a.n, a.num, s), s);
    std::partial_sort(s.ids.begin(), s.ids.begin() + a.num, s.ids.end(), Likelier{a.logits});
    for (int64_t i = 0; i < a.num; ++i) {
        a.ids[i] = s.ids[i];
        a.logprobs[i] = logprob(s.ids[i]);
    }
}

} // namespace octavo
