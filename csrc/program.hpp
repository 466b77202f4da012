// A recorded list of ops over fixed memory: inputs are copied in, the ops run in order, results lie where they lay. The number
// of rows of every array is read when an op runs, so that one program serves every number of rows up to its inputs' capacity.
#pragma once

#include <functional>
#include <initializer_list>
#include <unordered_map>
#include <vector>

#include "arrays.hpp"
#include "result_memory.hpp"

namespace octavo {

// A number of rows or columns: known now, or what a program's input has when the op runs.
struct Size {
    int64_t capacity;
    const int64_t* live; // null: always the capacity
    int64_t now() const { return live ? *live : capacity; }
    bool same(const Size& other) const { return capacity == other.capacity && live == other.live; }
};

class Program {
public:
    // For the ops of one device, which is told apart by its arrays and outlives the program.
    explicit Program(const Arrays& arrays) : arrays_(arrays), memory_(std::make_shared<ResultMemory>()) {}
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    bool is_of(const Arrays& arrays) const { return &arrays == &arrays_; }

    // An int32 array of at most so many rows (and columns, if 2 dimensions). Inputs of a group have equal numbers of rows.
    nb::object input(int group, int64_t rows, int64_t columns, int ndim);

    ResultMemory& memory() { return *memory_; }
    void append(std::function<void()> op) { ops_.push_back(std::move(op)); }
    // Keeps what is not the program's own alive as long as the program.
    void keep(nb::handle object, const char* data);
    // Says how many rows the array at `data` has. Throws std::invalid_argument where it is no input or result of the program.
    Size rows_of(const char* data) const;
    Size columns_of(const char* data) const;
    void set_rows(const char* data, Size rows) { rows_[data] = rows; }

    // Arrays to be copied in, in the order in which the inputs were made, checked.
    std::vector<Array> check_inputs(const std::vector<nb::object>& arrays) const;
    // Copies them in. Needs no interpreter lock, nor does run().
    void load(const std::vector<Array>& inputs);
    void run() const;
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

    const Arrays& arrays_;
    std::shared_ptr<ResultMemory> memory_;
    std::vector<std::unique_ptr<Input>> inputs_;
    std::unordered_map<const char*, Size> rows_;
    std::vector<std::function<void()>> ops_;
    std::vector<nb::object> kept_;
};

} // namespace octavo
