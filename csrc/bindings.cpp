// The Python module octavo._native. Its signatures for people and type checkers are in octavo/_native.pyi.
#include "bindings.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "cpu_features.hpp"

namespace octavo {

using namespace nanobind::literals;

namespace {

nb::dict cpu_features() {
    nb::dict result;
    for (const InstructionSet& set : instruction_sets()) result[set.name] = nb::make_tuple(set.usable, set.reason);
    return result;
}

void bind_memory(nb::module_& m) {
    nb::class_<PackedWeight>(m, "PackedWeight")
        .def_ro("rows", &PackedWeight::rows)
        .def_ro("columns", &PackedWeight::columns)
        .def_ro("gated", &PackedWeight::gated)
        .def_prop_ro("num_bytes", [](const PackedWeight& w) { return w.memory.bytes(); })
        .def_ro("shortlists", &PackedWeight::shortlists);
    nb::class_<KVBlocks>(m, "KVBlocks")
        .def(nb::init<int64_t, int64_t, int64_t, int32_t, int32_t, int32_t, const std::string&>(), nb::kw_only(), "num_layers"_a, "num_blocks"_a,
             "num_host_blocks"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a, "dtype"_a)
        .def_prop_ro("num_bytes", [](const KVBlocks& blocks) { return blocks.device.bytes(); })
        .def("find_pages", &KVBlocks::find_pages);
}

void bind_heads(nb::module_& m) {
    nb::class_<HeadShape>(m, "HeadShape")
        .def(
            "__init__",
            [](HeadShape* self, int32_t heads, int32_t kv_heads, int32_t dim) { new (self) HeadShape{heads, kv_heads, dim}; },
            "num_heads"_a, "num_kv_heads"_a, "head_dim"_a);
}

} // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false); // a thread that the interpreter's end has stopped (unlocked.hpp) keeps what it uses
    import_numpy();
    m.def("cpu_features", &cpu_features);
    m.def("tunings", [] { return std::vector<std::string>(std::begin(kTunings), std::end(kTunings)); });
    bind_ceilings(m);
    bind_dequantize(m);
    bind_memory(m);
    bind_heads(m);
    nb::class_<Device> device(m, "Device");
    bind_integer(m, device);
    bind_program(m, device);
    bind_restored(m, device);
    device
        .def(nb::init<const std::string&, int, const std::vector<int>&, bool, nb::handle, const std::string&, int, const std::string&>(),
             "isa"_a, "num_threads"_a, nb::kw_only(), "cores"_a, "act_bfloat16"_a, "bfloat16"_a, "integer_kernels"_a = "auto",
             "activation_bits"_a = 8, "tuning"_a = "auto")
        .def_prop_ro("isa", &Device::isa)
        .def_prop_ro("num_threads", &Device::num_threads)
        .def_prop_ro("progress", &Device::progress)
        .def("pack", &Device::pack, "matrices"_a, nb::kw_only(), "gated"_a = false)
        .def("shortlist", &Device::shortlist, "weight"_a, nb::kw_only(), "most_bytes"_a, "inputs"_a)
        .def("embedding", &Device::embedding, "ids"_a, "table"_a)
        .def("new_result", &Device::new_result, "x"_a, "columns"_a)
        .def(
            "linear",
            [](Device& d, nb::handle x, const PackedWeight& w, nb::handle b, nb::handle r, nb::handle into, int64_t column) {
                return d.linear(x, w, b, r, {into, column});
            },
            "x"_a, "weight"_a, "bias"_a.none(), "residual"_a.none(), "into"_a.none() = nb::none(), "column"_a = 0)
        .def("linear_argmax", &Device::linear_argmax, "x"_a, "weight"_a, "allowed"_a.none() = nb::none())
        .def("gated_linear", &Device::gated_linear, "x"_a, "weight"_a, "bias"_a.none())
        .def("rms_norm", &Device::rms_norm, "x"_a, "weight"_a, "eps"_a)
        .def("silu_and_mul", &Device::silu_and_mul, "gate_up"_a)
        .def("gather_rows", &Device::gather_rows, "x"_a, "rows"_a)
        .def("head_norm", &Device::head_norm, "qkv"_a, "weight"_a, "shape"_a, "keys"_a, "eps"_a)
        .def("rotary", &Device::rotary, "qkv"_a, "positions"_a, "cos_sin"_a, "shape"_a)
        .def("attention", &Device::attention, "cache"_a, "layer"_a, "qkv"_a, "slot_mapping"_a, "query_start"_a, "seq_lens"_a,
             "block_tables"_a, "shape"_a, "scale"_a, "window"_a, "rows"_a.none())
        .def("copy_blocks", &Device::copy_blocks, "cache"_a, "swap_out"_a, "swap_in"_a, "copy"_a)
        .def("argmax", &Device::argmax, "logits"_a)
        .def("adjust", &Device::adjust, "logits"_a, "allowed"_a.none(), "bias"_a.none(), "penalties"_a.none())
        .def("sample", &Device::sample, "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seeds"_a, "positions"_a,
             "allowed"_a.none(), "bias"_a.none(), "penalties"_a.none())
        .def("top_logprobs", &Device::top_logprobs, "logits"_a, "chosen"_a, "num"_a);
}

} // namespace octavo
