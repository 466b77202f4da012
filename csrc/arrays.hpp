// numpy arrays as arguments and results. nanobind's own ndarray cannot carry bfloat16 of ml_dtypes, so numpy's C interface is
// used directly; it also costs less per argument.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace octavo {

namespace nb = nanobind;

enum class Type { float32, int32, int64, uint64, bfloat16 };

// A checked argument: C-contiguous, aligned, of the expected type and number of dimensions.
struct Array {
    char* data;
    int64_t shape[2]; // the second is 1 for a vector
    int64_t size() const { return shape[0] * shape[1]; }
    float* floats() const { return reinterpret_cast<float*>(data); }
    const int32_t* ints() const { return reinterpret_cast<const int32_t*>(data); }
};

class Arrays {
public:
    // bfloat16: numpy's dtype of that name.
    explicit Arrays(nb::handle bfloat16);

    // Throws nb::type_error naming `name`. ndim 1 or 2.
    Array read(nb::handle object, const char* name, Type type, int ndim) const;
    Array write(nb::handle object, const char* name, Type type, int ndim) const;
    // Of type float32 or bfloat16; which one is returned in `type`.
    Array read_matrix(nb::handle object, const char* name, Type& type) const;

    // Where an array's elements begin; null for what is no array.
    static char* data_of(nb::handle object);

    // An array over memory that `owner` keeps alive. ndim 1 or 2.
    nb::object view(void* data, Type type, int64_t rows, int64_t columns, int ndim, nb::handle owner) const;

private:
    int number(Type type) const;

    nb::object bfloat16_;
};

// Once, when the module is imported.
void import_numpy();

} // namespace octavo
