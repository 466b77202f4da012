// The ops as Python calls them. Each checks its arguments, takes memory for its result and issues one body: code that cuts the
// work into units and runs them on the pool. A body runs at once, with the interpreter's lock released, or is appended to the
// program being recorded; either way it is the same code, which reads numbers of rows and the contents of arrays when it runs.
// Checks are cheap but complete: no argument can make a kernel touch memory that is not its own. What each op means is in
// octavo/backends/base.py.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "best_of_rows.hpp"
#include "integer_weight.hpp"
#include "kernels.hpp"
#include "memory.hpp"
#include "program.hpp"
#include "sampling.hpp"
#include "shortlist.hpp"
#include "spans.hpp"
#include "thread_pool.hpp"
#include "weight_memory.hpp"

namespace octavo {

struct HeadShape {
    int32_t num_heads, num_kv_heads, head_dim;
    int64_t width() const { return (int64_t{num_heads} + 2 * int64_t{num_kv_heads}) * head_dim; }
};

// Throws std::invalid_argument where a value lies outside [low, high).
void check_range(const char* name, const int32_t* values, int64_t count, int64_t low, int64_t high);
void check(bool condition, const char* message);

// The units of a product's weights, which are shared out in spans.
struct WeightUnits {
    const char* data = nullptr;
    int64_t units = 0, unit_bytes = 0;

    // Where claimant `own` of `count` begins; null if nothing is known.
    const char* begin(int64_t own, int64_t count) const { return data + units * own / count * unit_bytes; }
};

// Those of a product and of the one after it, as far as a recording knows it.
struct WeightStream {
    WeightUnits own, next;

    // What a thread reads up to `end`, and then on. Weights are shared out among those whose rows are of the same part.
    Reading of(const Spans& spans, int64_t parts, int thread, const char* end) const {
        const int64_t readers = spans.size() / parts, reader = spans.of(thread) % readers;
        return {own.begin(reader, readers), end, next.begin(reader, readers)};
    }
};

struct IntegerCut; // how an integer product is shared out
struct WantedRows; // of attention

// A result that the columns from `column` on are written to, or none.
struct Into {
    nb::handle result;
    int64_t column;
};

class Device {
public:
    Device(const std::string& isa, int num_threads, const std::vector<int>& cores, bool act_bf16, nb::handle bfloat16,
           const std::string& integer_kernels, int activation_bits, const std::string& tuning);

    const char* isa() const { return kernels_->isa; }
    int num_threads() const { return pool_.size(); }
    uint64_t progress() const { return pool_.progress(); }
    bool in_bfloat16() const { return act_bf16_; }

    // Ops are appended to the program, not run, until end_recording().
    void begin_recording(Program& program);
    void end_recording() {
        program_ = nullptr;
        last_stream_ = nullptr;
    }
    std::unique_ptr<Program> new_program() const { return std::make_unique<Program>(arrays_); }
    // Begins to run a program's ops; they are done when finish() has returned, which takes part in them and throws what went wrong.
    // cuts: see Program::load.
    void start(Program& program, const std::vector<nb::object>& inputs, const Program::Cuts& cuts);
    void finish(Program& program);
    // Finishes a program and starts it again, with values of its int32[R] result, those of `rows`, in the gaps of the first input.
    // Returns that result, and how many seconds it took.
    std::pair<std::vector<int32_t>, double> go_on(Program& program, nb::handle result, const std::vector<nb::object>& inputs,
                                                  const Program::Cuts& cuts, const std::vector<int64_t>& gaps, const std::vector<int64_t>& rows);
    // Until nothing runs that was started, whatever came of it. In a forked process nothing does.
    void wait();

    std::unique_ptr<PackedWeight> pack(nb::sequence matrices, bool gated);
    // Memory for a matrix, and the rows of a source as its rows from `first` on.
    // vocabulary: for embedding and a shortlist, too.
    std::unique_ptr<IntegerWeight> integer_weight(int bits, int64_t rows, int64_t groups, bool gated, bool vocabulary);
    void pack_rows(const IntegerSource& source, IntegerWeight& weight, int64_t first);

    // What decides how this device packs: a weight may be restored where it is the same.
    std::string packing() const;
    // Weights as they were packed before, in memory that stays as it is. Throw std::invalid_argument where they cannot have been:
    // no kernel reads beyond what there is, whatever is in it.
    std::unique_ptr<IntegerWeight> restored(int bits, int64_t rows, int64_t columns, bool gated, bool paired, WeightMemory::Slice memory) const;
    // compact: with what `memory` needs beside it, if it holds compact blocks, but not `compact` itself.
    std::unique_ptr<PackedWeight> restored(std::unique_ptr<PackedWeight> weight) const;

    // Makes what lets linear_argmax of a weight be faster, where it does; a copy has no more than most_bytes.
    // inputs: how large each one is beside the others; empty: nobody knows.
    void shortlist(PackedWeight& weight, int64_t most_bytes, const std::vector<float>& inputs);
    void shortlist_integer(IntegerWeight& weight, int64_t most_bytes, const std::vector<float>& inputs);

    nb::object embedding(nb::handle ids, const PackedWeight& table);
    // Memory for a result: a row of so many columns for each of x.
    nb::object new_result(nb::handle x, int64_t columns);
    nb::object linear(nb::handle x, const PackedWeight& weight, nb::handle bias, nb::handle residual, const Into& into);
    nb::object gated_linear(nb::handle x, const PackedWeight& weight, nb::handle bias);
    nb::object linear_argmax(nb::handle x, const PackedWeight& weight, nb::handle allowed);
    nb::object embedding_integer(nb::handle ids, const IntegerWeight& table);
    nb::object linear_integer(nb::handle x, const IntegerWeight& weight, nb::handle bias, nb::handle residual, const Into& into);
    nb::object gated_linear_integer(nb::handle x, const IntegerWeight& weight, nb::handle bias);
    nb::object linear_argmax_integer(nb::handle x, const IntegerWeight& weight, nb::handle allowed);
    nb::object rms_norm(nb::handle x, nb::handle weight, float eps);
    nb::object silu_and_mul(nb::handle gate_up);
    nb::object gather_rows(nb::handle x, nb::handle rows);
    void head_norm(nb::handle qkv, nb::handle weight, HeadShape shape, bool keys, float eps);
    void rotary(nb::handle qkv, nb::handle positions, nb::handle cos_sin, HeadShape shape);

    nb::object attention(const KVBlocks& cache, int64_t layer, nb::handle qkv, nb::handle slots, nb::handle query_start,
                         nb::handle seq_lens, nb::handle tables, HeadShape shape, float scale, int32_t window, nb::handle wanted);
    void copy_blocks(const KVBlocks& cache, nb::handle swap_out, nb::handle swap_in, nb::handle copy);

    nb::object argmax(nb::handle logits);
    nb::object adjust(nb::handle logits, nb::handle allowed, nb::handle bias, nb::handle penalties);
    nb::object sample(nb::handle logits, nb::handle temperature, nb::handle top_k, nb::handle top_p, nb::handle min_p,
                      nb::handle seeds, nb::handle positions, nb::handle allowed, nb::handle bias, nb::handle penalties);
    nb::tuple top_logprobs(nb::handle logits, nb::handle chosen, int64_t num);

private:
    Type act() const { return act_bf16_ ? Type::bfloat16 : Type::float32; }
    int64_t act_bytes() const { return act_bf16_ ? 2 : 4; }
    struct Result {
        nb::object array;
        char* data;
        float* floats() const { return reinterpret_cast<float*>(data); }
        int32_t* ints() const { return reinterpret_cast<int32_t*>(data); }
    };

    // Those that a program is to be started with. Throws std::invalid_argument where it cannot be.
    std::vector<Array> inputs_of(const Program& program, const std::vector<nb::object>& inputs) const;
    // Arguments, as Arrays reads them. What a program being recorded refers to lives as long as the program.
    Array read(nb::handle object, const char* name, Type type, int ndim);
    Array write(nb::handle object, const char* name, Type type, int ndim);
    Array read_matrix(nb::handle object, const char* name, Type& type);
    template <class Object> void hold(const Object& object);
    // Which columns of each row may be drawn, a bit for each in words; no words where all may.
    struct Allowed {
        const uint32_t* bits;
        Size given; // words of a row
        int64_t words;
        // When the op runs. Null: all.
        const uint32_t* now() const {
            check(given.now() == words || given.now() == 0, "allowed must have a bit for each logit, in words of 32");
            return given.now() ? bits : nullptr;
        }
    };
    Allowed read_allowed(nb::handle array, Size rows, int64_t columns);
    // Of each row; `fields` are those of LogitBias and of Penalties in octavo/backends/base.py, or None.
    std::vector<RowBias> read_bias(nb::handle fields, int64_t rows);
    std::vector<RowPenalties> read_penalties(nb::handle fields, int64_t rows);
    Array heads_of(nb::handle qkv, HeadShape shape, bool write);
    // The number of an argument's rows, or of its columns, when the op runs.
    Size rows_of(const Array& array) const;
    Size columns_of(const Array& array) const;
    Result result(Type type, Size rows, int64_t columns, int ndim);
    // Memory for this op's body alone: for each of its rows, or each thread's. In a recording such memory is reused only for the
    // same kind of scratch (per row of one input, or per thread): two lanes may be at different ops at the same time.
    ResultMemory::Lease scratch_of_rows(Size rows, int64_t row_bytes);
    ResultMemory::Lease scratch_of_threads(int64_t bytes);
    // Or of what is not in lanes.
    ResultMemory::Lease scratch(int64_t bytes, const ResultMemory::Kind& kind = {});

    // A product's blocks, so many together, in equal spans: as few rows have them.
    WeightUnits spans_of(const IntegerLinearArgs& args, int64_t together) const;
    // Tells the product before that this one follows, and returns what will be told of the one after it.
    std::shared_ptr<const WeightStream> follow(const WeightUnits& own);

    // Runs body() now, or appends it to the program being recorded: all that it refers to must be captured by value. in_lanes: the
    // same body may run for several lanes at once.
    template <class Body> void issue(Body body, bool in_lanes = false);
    template <class Body> void issue_in_lanes(Body body) { issue(std::move(body), true); }
    // Runs body() now in any case, after what has been started.
    template <class Body> void run(Body&& body);
    // For bodies: call(row0, row1) over those rows, in parallel where `work` (elements touched) is worth it.
    template <class Call> void over_rows(Range rows, int64_t work, const Call& call);
    // For bodies: call(unit, thread) over all units in parallel.
    template <class Call> void over_units(int64_t count, const Call& call);
    // For bodies: call(unit, thread). Each thread has a span of the units of its own, the same share of them in every op, so that
    // what it wrote in one is near it in the next; whoever has done his takes from the others'.
    template <class Call> void over_spans(int64_t count, const Call& call);
    // The same of a product: call(args, unit, thread).
    template <class Call>
    void over_integer_units(const IntegerLinearArgs& args, const IntegerCut& cut, const WeightStream& stream, const Call& call);
    // The same of spans that are there: call(claim, thread), up to `most` units at a time.
    template <class Call> void over_claims(Spans& spans, int64_t most, const Call& call);

    // Checks and takes in bias and residual, finds memory for the result of `in` times `weight` (a packed weight of any kind),
    // unless it goes into a result that is there.
    template <class Args, class Weight>
    nb::object open_output(Args& args, const Array& in, const Weight& weight, nb::handle bias, nb::handle residual, const Into& into);
    // The same of the gates that `in` times `weight` passes; `out` becomes the result.
    template <class Weight>
    GatedBlockArgs open_gates(const Array& in, const Weight& weight, nb::handle bias, nb::object& out);
    // Throw std::invalid_argument for what a device with other kernels packed, and these cannot read.
    void check_packing(const PackedWeight& weight) const;
    void check_packing(const IntegerWeight& weight) const;
    // The arguments of a product of x that are known beforehand.
    LinearArgs product_of(const Array& x, const PackedWeight& weight) const;
    // For bodies: packs in compact blocks. False: there would be too many exceptions, or too much would be lost, and nothing is packed.
    bool pack_compact(const PackArgs& args, PackedWeight& weight);
    // Of the form of x that the kernel wants, where x has another; else 0.
    int64_t staged_row_bytes(const LinearArgs& args) const;
    bool in_whole_numbers(const LinearArgs& args) const { return args.compact && args.compact->exponents; }
    // The arguments now: of those rows alone, staged.
    LinearArgs staged(const LinearArgs& args, Range rows, char* stage);
    decltype(KernelTable::linear_bf16) kernel_of(const LinearArgs& args) const;
    // Floats of two blocks' product of a chunk of rows, as a thread holds it.
    int64_t sums_of_chunk(int64_t rows, int64_t k) const;
    void multiply(const LinearArgs& args, const WeightStream& stream);
    // sums: sums_size of them a thread.
    void multiply_gated(const LinearArgs& args, const WeightStream& stream, const GatedBlockArgs& gate, float* sums, int64_t sums_size);
    // Multiplies blocks to `sums` and holds them against what the thread has found before.
    void best_of_blocks(LinearArgs args, int64_t row0, int64_t row1, int64_t block0, int64_t block1, const BestOfRows& best, float* sums,
                        int thread);
    void multiply_argmax(const LinearArgs& args, const WeightStream& stream, const BestOfRows& best, float* sums, int32_t* places);
    // What an op with integer weights quantizes and multiplies, as far as it is known beforehand.
    struct IntegerProduct {
        IntegerLinearArgs args;
        QuantizeArgs quantize;
    };
    IntegerProduct product_of(const Array& x, const IntegerWeight& weight, int64_t out_stride) const;
    ResultMemory::Lease memory_for_records(Size rows, const IntegerWeight& weight);
    // For bodies: makes it a product of those rows alone, quantizes them, into memory for the records of all, and returns the kernels
    // for them. alone: each row for products of its own.
    const IntegerKernels& quantize_rows(IntegerProduct& product, Range own, char* records, bool alone = false);

    // Adds the list to the weight's, with what call(memory, first, count) measures of each block of its columns, unless that is too
    // much for a bound or `call` says so.
    template <class Weight, class Call> void add_list(Weight& weight, std::shared_ptr<Shortlist> list, const Call& call);
    // Adds the list with a copy of the weight in so many bits; read(first, count, to) dequantizes columns. same_rows: activations are
    // the same integers in both products.
    template <class Weight, class Read>
    void add_copy(Weight& weight, std::shared_ptr<Shortlist> list, int bits, bool same_rows, const std::vector<float>& sizes, const Read& read);
    // A product by a shortlist, and what is multiplied first.
    struct Attempt {
        std::shared_ptr<Shortlist> list;
        IntegerProduct rough;
    };
    // By each of the lists; `itself` is what those without a weight of their own multiply.
    std::vector<Attempt> attempts_by(const std::vector<std::shared_ptr<Shortlist>>& lists, const Array& x, const IntegerWeight* itself) const;
    // That for so many rows; may be null.
    static const Attempt* attempt_for(const std::vector<Attempt>& attempts, int64_t rows);
    // Floats of a block's product of so many rows, as a thread holds it.
    int64_t sums_of_blocks(int64_t rows) const;
    // Bytes of scratch that so many rows need to be promised anything.
    int64_t promise_bytes(const std::vector<Attempt>& attempts, int64_t rows) const;
    // For bodies: multiplies roughly, in such scratch, by the list that is returned. Null: the product is to be exact at once. fixed:
    // the rows of an exact product in whole numbers, else null.
    Shortlist* promise(const std::vector<Attempt>& attempts, int64_t rows, char* memory, const uint32_t* allowed, int64_t words,
                       const FixRowsArgs* fixed, Promises& found);
    using ComputeBlock = std::function<void(int64_t row, int64_t block, int thread)>;
    // For bodies: computes what may be the largest, and so holds it against the best. False: there is too much of it.
    bool settle(Shortlist& list, const Promises& promises, const BestOfRows& best, const ComputeBlock& compute);
    bool attend(const AttentionArgs& args, const WantedRows& wanted, int64_t sequences);
    void announce(const AttentionArgs& args, int64_t sequences, const char* next_layer);
    // Null if nothing is left of a thread's part.
    Pieces* coming_of(int thread) { return coming_[thread].next < coming_[thread].count ? &coming_[thread] : nullptr; }

    const KernelTable* kernels_;
    const IntegerKernels* integer_;
    decltype(KernelTable::attention) attention_int8_; // null: that of kernels_
    decltype(KernelTable::linear_compact) linear_compact_;
    const Tuning tuning_;
    bool act_bf16_;
    const int activation_levels_; // of bytes, in products with integer weights
    const bool pairs_;            // of groups of 4 bits, in all kernels of the instruction set
    Arrays arrays_;
    WeightMemory weights_;
    std::shared_ptr<ResultMemory> memory_ = std::make_shared<ResultMemory>();
    Program* program_ = nullptr; // being recorded
    std::shared_ptr<WeightStream> last_stream_; // of the product recorded last
    ThreadPool pool_;
    nb::object running_; // the program that was started and not finished
    std::mutex busy_; // held while bodies run; the rest is theirs
    // One a thread:
    std::vector<std::vector<float>> partition_states_;
    std::vector<std::vector<const char*>> coming_blocks_;
    std::vector<Pieces> coming_; // what the next layer's attention will read, each thread's part
    std::vector<std::vector<float>> attention_scratch_;
    std::vector<LogitsScratch> logits_scratch_;
};

} // namespace octavo
