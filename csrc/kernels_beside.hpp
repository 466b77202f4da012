// What integer products bring for the instruction set that they run beside, where they have dot products that it has not by itself:
// attention over keys and values in int8, and bf16 products in whole numbers. Included inside the instruction set's own namespace,
// after both, and after kernels_ceilings.hpp.

constexpr IntegerKernels with_what_is_beside(IntegerKernels table) {
    table.attention_int8 = attention_int8;
    table.linear_fixed = linear_fixed;
    table.pairs_peak = &kPairsPeak;
    return table;
}
