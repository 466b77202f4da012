// One row of logits -> one token, or its log-probabilities. The specification is octavo/backends/reference/sampling.py: order
// among equals by lowest id, NaN as minus infinity, one random number that is a function of (seed, position) alone.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace octavo {

// What chosen tokens of a row gain.
struct RowBias {
    const int32_t* tokens;
    const float* values;
    int64_t count;
};

// What a row loses for the tokens before it, of which those from `output` on are its output; see Ops.adjust in
// octavo/backends/base.py.
struct RowPenalties {
    float repetition, frequency, presence;
    const int32_t* tokens;
    int64_t count, output;
};

struct DrawArgs {
    const float* logits;
    int64_t n;
    const uint32_t* allowed; // a bit for each logit; null: all
    float temperature;
    int32_t top_k;
    float top_p, min_p;
    uint64_t seed;
    int64_t position;
    RowBias bias;
    RowPenalties penalties;
};

struct TopLogprobsArgs {
    const float* logits;
    int64_t n;
    int32_t chosen;
    int64_t num;
    float* chosen_logprob;
    int32_t* chosen_rank;
    int32_t* ids;    // [num]
    float* logprobs; // [num]
};

// Memory that a thread keeps between rows.
struct LogitsScratch {
    std::vector<float> masked, shares, maxima, ordered;
    std::vector<double> sums;
    std::vector<int32_t> ids;
    std::vector<int32_t> occurrences; // of each token; 0 between rows

    void resize(int64_t n);
};

void adjust(const RowBias& bias, const RowPenalties& penalties, float* logits, int64_t n, LogitsScratch& scratch);
int32_t draw(const KernelTable& kernels, DrawArgs args, LogitsScratch& scratch);
void top_logprobs(const KernelTable& kernels, const TopLogprobsArgs& args, LogitsScratch& scratch);

} // namespace octavo
