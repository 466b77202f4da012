// A recorded list of ops over fixed memory: inputs are copied in, the ops run in order, results lie where they lay. The number
// of rows of every array is read when an op runs, so that one program serves every number of rows up to its inputs' capacity.
#pragma once

#include <exception>
#include <functional>
#include <initializer_list>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "result_memory.hpp"
#include "thread_pool.hpp"

namespace octavo {

struct Range {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
};

// Rows of a program's inputs, and all that its ops make of them, that one thread computes by itself: neither waits for others in
// every op nor fetches what they have written.
class Lane {
public:
    // Of inputs whose number of rows lies there.
    void add(const int64_t* live, Range rows) { ranges_.emplace_back(live, rows); }
    // Where this thread computes a lane, the rows of it; else all.
    static Range rows_of(const int64_t* live) {
        if (own_) {
            for (const auto& [key, rows] : own_->ranges_) {
                if (key == live) return rows;
            }
        }
        return {0, *live};
    }

    class Within {
    public:
        explicit Within(const Lane& lane) { own_ = &lane; }
        ~Within() { own_ = nullptr; }
        Within(const Within&) = delete;
        Within& operator=(const Within&) = delete;
    };

private:
    static inline thread_local const Lane* own_ = nullptr;
    std::vector<std::pair<const int64_t*, Range>> ranges_;
};

// A number of rows or columns: known now, or what a program's input has when the op runs.
struct Size {
    int64_t capacity;
    const int64_t* live; // null: always the capacity
    int64_t now() const { return live ? *live : capacity; }
    // The rows that an op is to compute here.
    Range range() const { return live ? Lane::rows_of(live) : Range{0, capacity}; }
    bool same(const Size& other) const { return capacity == other.capacity && live == other.live; }
};

class Program {
public:
    using Cuts = std::vector<std::vector<int64_t>>;

    // For the ops of one device, which is told apart by its arrays and outlives the program.
    explicit Program(const Arrays& arrays) : arrays_(arrays), memory_(std::make_shared<ResultMemory>()) {}
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    bool is_of(const Arrays& arrays) const { return &arrays == &arrays_; }

    // An int32 array of at most so many rows (and columns, if 2 dimensions). Inputs of a group have equal numbers of rows.
    nb::object input(int group, int64_t rows, int64_t columns, int ndim);

    ResultMemory& memory() { return *memory_; }
    // in_lanes: rows are computed one by one, and only those of Size::range().
    void append(std::function<void()> op, bool in_lanes) { ops_.push_back({std::move(op), in_lanes}); }
    // Keeps what is not the program's own alive as long as the program.
    void keep(nb::handle object, const char* data);
    // Says how many rows an array has. Throws std::invalid_argument where it is no input or result of the program, as it was made.
    Size rows_of(const Array& array) const;
    Size columns_of(const char* data) const;
    void set_rows(const char* data, Size rows) { rows_[data] = rows; }

    // Arrays to be copied in, in the order in which the inputs were made, checked.
    std::vector<Array> check_inputs(const std::vector<nb::object>& arrays) const;
    // Copies them in. Needs no interpreter lock, nor does run(), which throws nothing: see rethrow(). cuts: of each group of inputs,
    // where its rows are cut into lanes, as often in each; nothing: they are not.
    void load(const std::vector<Array>& inputs, const Cuts& cuts);
    void run(ThreadPool& pool);
    // Throws what went wrong in the last run, once.
    void rethrow();
    // Writes into the first input, as it was loaded last: what is negative as 0. Throws std::invalid_argument for a place outside.
    void fill(const std::vector<int64_t>& gaps, const std::vector<int32_t>& values);
    // That the last run took.
    double seconds() const { return seconds_; }
    // The rows of a result that the last run computed, or will have.
    nb::object trimmed(nb::handle result) const;
    size_t num_ops() const { return ops_.size(); }

private:
    struct Input {
        int group, ndim;
        int64_t row_capacity, column_capacity;
        int64_t rows, columns; // of the last load
        char* data;
        nb::object array;
    };
    struct Op {
        std::function<void()> body;
        bool in_lanes;
    };

    void run_ops(ThreadPool& pool);
    const int64_t* rows_of_group(int group) const;
    Size rows_at(const char* data) const;

    const Arrays& arrays_;
    std::shared_ptr<ResultMemory> memory_;
    std::vector<std::unique_ptr<Input>> inputs_;
    std::unordered_map<const char*, Size> rows_;
    std::vector<Op> ops_;
    std::vector<Lane> lanes_;
    double seconds_ = 0;
    std::exception_ptr failure_; // of the last run
    std::vector<nb::object> kept_;
};

} // namespace octavo
