// The Python face of recorded programs.
#include "bindings.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace octavo {

using namespace nanobind::literals;

void bind_program(nb::module_& module, nb::class_<Device>& device) {
    nb::class_<Program>(module, "Program")
        .def(
            "input",
            [](Program& program, int group, int64_t rows, nb::object columns) {
                return program.input(group, rows, columns.is_none() ? 1 : nb::cast<int64_t>(columns), columns.is_none() ? 1 : 2);
            },
            "group"_a, "rows"_a, "columns"_a = nb::none())
        .def("trimmed", &Program::trimmed, "result"_a)
        .def_prop_ro("seconds", &Program::seconds)
        .def_prop_ro("num_ops", &Program::num_ops);
    device.def("new_program", &Device::new_program, nb::keep_alive<0, 1>())
        .def("begin_recording", &Device::begin_recording, "program"_a)
        .def("end_recording", &Device::end_recording)
        .def("start", &Device::start, "program"_a, "inputs"_a, "cuts"_a = Program::Cuts{})
        .def("finish", &Device::finish, "program"_a)
        .def("go_on", &Device::go_on, "program"_a, "result"_a, "inputs"_a, "cuts"_a, "gaps"_a, "rows"_a)
        .def("wait", &Device::wait);
}

} // namespace octavo
