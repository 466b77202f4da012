#include "arrays.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <string>

namespace octavo {

namespace {

const char* type_name(Type type) {
    switch (type) {
    case Type::float32: return "float32";
    case Type::int32: return "int32";
    case Type::int64: return "int64";
    case Type::uint64: return "uint64";
    case Type::bfloat16: return "bfloat16";
    }
    return "?";
}

[[noreturn]] void refuse(const char* name, const char* type, int ndim) {
    std::string message = std::string(name) + " must be a C-contiguous " + type + " array of " + std::to_string(ndim) +
                          (ndim == 1 ? " dimension" : " dimensions");
    throw nb::type_error(message.c_str());
}

} // namespace

void import_numpy() {
    if (PyArray_ImportNumPyAPI() < 0) throw nb::python_error();
}

Arrays::Arrays(nb::handle bfloat16) : bfloat16_(nb::borrow(bfloat16)) {
    if (!PyArray_DescrCheck(bfloat16.ptr()) || PyDataType_ELSIZE(reinterpret_cast<PyArray_Descr*>(bfloat16.ptr())) != 2) {
        throw nb::type_error("bfloat16 must be a numpy dtype of 2 bytes");
    }
}

int Arrays::number(Type type) const {
    switch (type) {
    case Type::float32: return NPY_FLOAT32;
    case Type::int32: return NPY_INT32;
    case Type::int64: return NPY_INT64;
    case Type::uint64: return NPY_UINT64;
    case Type::bfloat16: return reinterpret_cast<PyArray_Descr*>(bfloat16_.ptr())->type_num;
    }
    return NPY_NOTYPE;
}

Array Arrays::read(nb::handle object, const char* name, Type type, int ndim) const {
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (!PyArray_Check(object.ptr()) || PyArray_TYPE(array) != number(type) || PyArray_NDIM(array) != ndim ||
        !PyArray_ISCARRAY_RO(array)) {
        refuse(name, type_name(type), ndim);
    }
    return {PyArray_BYTES(array), {PyArray_DIM(array, 0), ndim == 2 ? PyArray_DIM(array, 1) : 1}};
}

Array Arrays::write(nb::handle object, const char* name, Type type, int ndim) const {
    Array result = read(object, name, type, ndim);
    if (!PyArray_ISWRITEABLE(reinterpret_cast<PyArrayObject*>(object.ptr()))) {
        throw nb::type_error((std::string(name) + " must be writeable").c_str());
    }
    return result;
}

Array Arrays::read_matrix(nb::handle object, const char* name, Type& type) const {
    auto* array = reinterpret_cast<PyArrayObject*>(object.ptr());
    if (!PyArray_Check(object.ptr())) refuse(name, "float32 or bfloat16", 2);
    type = PyArray_TYPE(array) == number(Type::bfloat16) ? Type::bfloat16 : Type::float32;
    return read(object, name, type, 2);
}

char* Arrays::data_of(nb::handle object) {
    return PyArray_Check(object.ptr()) ? PyArray_BYTES(reinterpret_cast<PyArrayObject*>(object.ptr())) : nullptr;
}

nb::object Arrays::view(void* data, Type type, int64_t rows, int64_t columns, int ndim, nb::handle owner) const {
    npy_intp shape[2] = {rows, columns};
    PyArray_Descr* descr;
    if (type == Type::bfloat16) {
        descr = reinterpret_cast<PyArray_Descr*>(bfloat16_.ptr());
        Py_INCREF(descr);
    } else {
        descr = PyArray_DescrFromType(number(type));
    }
    PyObject* array = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, nullptr, data, NPY_ARRAY_CARRAY, nullptr);
    if (!array) throw nb::python_error();
    Py_INCREF(owner.ptr());
    if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner.ptr()) < 0) {
        Py_DECREF(array);
        throw nb::python_error();
    }
    return nb::steal(array);
}

} // namespace octavo
