// Unpacks the block formats of GGUF tensors, on several threads. Owns the formats' bit layouts in C++; its twin in numpy,
// octavo/quant/gguf.py, is the specification: both give the same bits (this file must be compiled without contraction).
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Elements and bytes of one block of a ggml type, both 0 for a type that is not known here; of whole numbers how many share a
// scale, else 0, and whether there are minimums.
struct BlockFormat {
    size_t elements, bytes, inputs;
    bool minimums;
};
BlockFormat block_format(int type);

// blocks * format.bytes bytes at data -> blocks * format.elements values at out: float, or bfloat16 as its bits.
// The type must be known. Uses up to num_threads threads of its own; returns when all is written.
void dequantize(int type, const uint8_t* data, size_t blocks, float* out, int num_threads);
void dequantize(int type, const uint8_t* data, size_t blocks, uint16_t* out, int num_threads);

// Blocks of whole numbers as these: values, one a byte or `packed` (as Int4Group of octavo/quant/layouts.py has them); scales and,
// if the format has any, minimums, one for each format.inputs values.
void split_blocks(int type, const uint8_t* data, size_t blocks, uint8_t* values, bool packed, float* scales, float* minimums,
                  int num_threads);

}  // namespace octavo
