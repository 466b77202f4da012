// Unpacks the block formats of GGUF tensors, on several threads. Owns the formats' bit layouts in C++; its twin in numpy,
// octavo/quant/gguf.py, is the specification: both give the same bits (this file must be compiled without contraction).
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Elements and bytes of one block of a ggml type, both 0 for a type that is not known here; of whole numbers how many share a
// scale, else 0; whether there are minimums; and, of others whose layout has minimums, what is added to values for that.
struct BlockFormat {
    size_t elements, bytes, inputs;
    bool minimums;
    int offset;
};
BlockFormat block_format(int type);

// blocks * format.bytes bytes at data -> blocks * format.elements values at out: float, or bfloat16 as its bits.
// The type must be known. Uses up to num_threads threads of its own; returns when all is written.
void dequantize(int type, const uint8_t* data, size_t blocks, float* out, int num_threads);
void dequantize(int type, const uint8_t* data, size_t blocks, uint16_t* out, int num_threads);

// Blocks of whole numbers as the layouts of octavo/quant/layouts.py have them: values, one a byte or `packed` (as Int4Group);
// scales and, if the format has minimums or an offset, minimums, one for each format.inputs values, fp16. Returns whether all of
// these are finite.
bool split_blocks(int type, const uint8_t* data, size_t blocks, uint8_t* values, bool packed, uint16_t* scales, uint16_t* minimums,
                  int num_threads);

}  // namespace octavo
