// The ops as Python calls them: checks arguments, takes memory for results from the arena, cuts the work into units and runs
// them on the pool with the interpreter's lock released. Checks are cheap but complete: no argument can make a kernel touch
// memory that is not its own. See octavo/backends/base.py for what each op means.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "integer_weight.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "sampling.hpp"
#include "thread_pool.hpp"

namespace octavo {

struct HeadShape {
    int32_t num_heads, num_kv_heads, head_dim;
    int64_t width() const { return (int64_t{num_heads} + 2 * int64_t{num_kv_heads}) * head_dim; }
};

class Device {
public:
    Device(const std::string& isa, int num_threads, const std::vector<int>& cores, bool act_bf16, nb::handle bfloat16,
           const std::string& integer_kernels);

    const char* isa() const { return kernels_->isa; }
    int num_threads() const { return pool_.size(); }

    void begin_step() { arena_.reset(); }
    std::unique_ptr<PackedWeight> pack(nb::handle matrix);
    std::unique_ptr<IntegerWeight> pack_integer(const IntegerSource& source);

    nb::object embedding(nb::handle ids, const PackedWeight& table);
    nb::object linear(nb::handle x, const PackedWeight& weight, nb::handle bias, nb::handle residual);
    nb::object embedding_integer(nb::handle ids, const IntegerWeight& table);
    nb::object linear_integer(nb::handle x, const IntegerWeight& weight, nb::handle bias, nb::handle residual);
    nb::object rms_norm(nb::handle x, nb::handle weight, float eps);
    nb::object silu_and_mul(nb::handle gate_up);
    nb::object gather_rows(nb::handle x, nb::handle rows);
    void head_norm(nb::handle qkv, nb::handle weight, HeadShape shape, bool keys, float eps);
    void rotary(nb::handle qkv, nb::handle positions, nb::handle cos_sin, HeadShape shape);

    nb::object attention(const KVBlocks& cache, int64_t layer, nb::handle qkv, nb::handle slots, nb::handle query_start,
                         nb::handle seq_lens, nb::handle tables, HeadShape shape, float scale, int32_t window);
    void copy_blocks(const KVBlocks& cache, nb::handle swap_out, nb::handle swap_in, nb::handle copy);

    nb::object argmax(nb::handle logits);
    nb::object sample(nb::handle logits, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
                      nb::handle seeds, nb::handle positions);
    nb::tuple top_logprobs(nb::handle logits, nb::handle chosen, int64_t num);

private:
    Type act() const { return act_bf16_ ? Type::bfloat16 : Type::float32; }
    // A result of this device; `data` receives its memory.
    nb::object result(Type type, int64_t rows, int64_t columns, int ndim, char*& data);
    // body(row0, row1) over all rows, in parallel where `work` (elements touched) is worth it.
    template <class Body> void over_rows(int64_t rows, int64_t work, const Body& body);
    // body(unit, thread) over all units in parallel.
    template <class Body> void over_units(int64_t count, const Body& body);
    Array heads_of(nb::handle qkv, HeadShape shape, bool write) const;
    // Checks and takes in bias and residual, finds memory for the result of `in` times `weight` (a packed weight of any kind).
    template <class Args, class Weight>
    nb::object open_output(Args& args, const Array& in, const Weight& weight, nb::handle bias, nb::handle residual);
    void multiply(LinearArgs args, const PackedWeight& weight);
    void stage_activations(LinearArgs& args);
    bool attend(const AttentionArgs& args, int64_t sequences);
    // At least so many floats, aligned to a cache line, for the unit that `thread` is working on.
    float* attention_scratch(int thread, size_t floats);

    const KernelTable* kernels_;
    const IntegerKernels* integer_;
    bool act_bf16_;
    Arrays arrays_;
    Arena arena_;
    ThreadPool pool_;
    std::mutex busy_; // held while the pool runs an op; the two below are touched by the op's units only
    std::vector<std::vector<float>> attention_scratch_; // one a thread
    std::vector<LogitsScratch> logits_scratch_;         // one a thread
};

// Throws std::invalid_argument where a value lies outside [low, high).
void check_range(const char* name, const int32_t* values, int64_t count, int64_t low, int64_t high);
void check(bool condition, const char* message);

} // namespace octavo
