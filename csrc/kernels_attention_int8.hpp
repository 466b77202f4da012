// Attention over keys and values in int8 beside integer products, where those have dot products that the instruction set has not by
// itself. Included inside the instruction set's own namespace, after kernels_attention.hpp.

constexpr IntegerKernels with_attention(IntegerKernels table) {
    table.attention_int8 = attention_int8;
    return table;
}
