#include "program.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

namespace octavo {

nb::object Program::input(int group, int64_t rows, int64_t columns, int ndim) {
    if (!ops_.empty()) throw std::invalid_argument("inputs must be made before the program's first op");
    const int64_t most = int64_t{1} << 31; // and as many numbers in all
    if (rows < 1 || columns < 1 || rows > most || columns > most / rows || ndim < 1 || ndim > 2 || (ndim == 1 && columns != 1)) {
        throw std::invalid_argument("input: size out of range");
    }
    ResultMemory::Lease lease = memory_->allocate(rows * columns * 4);
    char* data = lease.data();
    std::memset(data, 0, rows * columns * 4);
    nb::object array = arrays_.view(data, Type::int32, rows, columns, ndim, std::move(lease).keep());
    inputs_.push_back(std::make_unique<Input>(Input{group, ndim, rows, columns, rows, columns, data, array}));
    rows_[data] = {rows, rows_of_group(group)};
    for (const auto& input : inputs_) {
        if (input->group == group && input->row_capacity != rows) throw std::invalid_argument("inputs of a group must have equal capacities");
    }
    return array;
}

// The first one's.
const int64_t* Program::rows_of_group(int group) const {
    for (const auto& input : inputs_) {
        if (input->group == group) return &input->rows;
    }
    throw std::invalid_argument("there is no such group of inputs");
}

void Program::keep(nb::handle object, const char* data) {
    if (!memory_->owns(data)) kept_.push_back(nb::borrow(object));
}

Size Program::rows_at(const char* data) const {
    const auto found = rows_.find(data);
    if (found == rows_.end()) throw std::invalid_argument("an array is neither an input nor a result of the program being recorded");
    return found->second;
}

Size Program::rows_of(const Array& array) const {
    const Size rows = rows_at(array.data);
    if (array.shape[0] != rows.capacity) throw std::invalid_argument("an array of the program being recorded must have the shape it was made with");
    return rows;
}

Size Program::columns_of(const char* data) const {
    for (const auto& input : inputs_) {
        if (input->data == data) return {input->column_capacity, &input->columns};
    }
    throw std::invalid_argument("an array is not an input of the program being recorded");
}

std::vector<Array> Program::check_inputs(const std::vector<nb::object>& arrays) const {
    if (arrays.size() != inputs_.size()) throw std::invalid_argument("replay: there must be one array for each input");
    std::vector<Array> sources;
    for (size_t i = 0; i < arrays.size(); ++i) {
        const Input& input = *inputs_[i];
        const std::string name = "input " + std::to_string(i);
        const Array source = arrays_.read(arrays[i], name.c_str(), Type::int32, input.ndim);
        if (source.shape[0] > input.row_capacity || source.shape[1] > input.column_capacity) {
            throw std::invalid_argument(name + " is larger than the program's");
        }
        for (size_t j = 0; j < i; ++j) {
            if (inputs_[j]->group == input.group && sources[j].shape[0] != source.shape[0]) {
                throw std::invalid_argument(name + " must have as many rows as input " + std::to_string(j));
            }
        }
        sources.push_back(source);
    }
    return sources;
}

void Program::load(const std::vector<Array>& inputs, const Cuts& cuts) {
    for (size_t i = 0; i < inputs.size(); ++i) {
        inputs_[i]->rows = inputs[i].shape[0];
        inputs_[i]->columns = inputs[i].shape[1];
        std::memmove(inputs_[i]->data, inputs[i].data, inputs[i].size() * 4);
    }
    failure_ = nullptr;
    lanes_.clear();
    for (size_t group = 0; group < cuts.size(); ++group) {
        const int64_t* rows = rows_of_group(static_cast<int>(group));
        lanes_.resize(cuts[0].size() + 1);
        if (cuts[group].size() != cuts[0].size()) throw std::invalid_argument("every group must be cut as often");
        int64_t begin = 0;
        for (size_t lane = 0; lane < lanes_.size(); ++lane) {
            const int64_t end = lane < cuts[group].size() ? cuts[group][lane] : *rows;
            if (end < begin || end > *rows) throw std::invalid_argument("cuts must ascend, within the rows of their group");
            lanes_[lane].add(rows, {begin, end});
            begin = end;
        }
    }
}

void Program::fill(const std::vector<int64_t>& gaps, const std::vector<int32_t>& values) {
    auto* to = reinterpret_cast<int32_t*>(inputs_.at(0)->data);
    for (size_t i = 0; i < gaps.size(); ++i) {
        if (gaps[i] < 0 || gaps[i] >= inputs_[0]->rows) throw std::invalid_argument("a gap lies outside the first input");
        to[gaps[i]] = std::max(values[i], 0);
    }
}

void Program::run(ThreadPool& pool) {
    const auto begin = std::chrono::steady_clock::now();
    try {
        run_ops(pool);
    } catch (...) {
        failure_ = std::current_exception();
    }
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void Program::rethrow() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Program::run_ops(ThreadPool& pool) {
    for (auto op = ops_.begin(); op != ops_.end();) {
        if (lanes_.size() < 2 || !op->in_lanes) {
            (op++)->body();
            continue;
        }
        const auto end = std::find_if(op, ops_.end(), [](const Op& next) { return !next.in_lanes; });
        pool.run_apart(static_cast<int64_t>(lanes_.size()), [&](int64_t lane) {
            const Lane::Within within(lanes_[lane]);
            for (auto own = op; own != end; ++own) own->body();
        });
        op = end;
    }
}

nb::object Program::trimmed(nb::handle result) const {
    return result[nb::slice(nb::int_(0), nb::int_(rows_at(arrays_.data_of(result)).now()), nb::none())];
}

} // namespace octavo
