// Unpacks the block formats of GGUF tensors, on several threads. Owns the formats' bit layouts in C++; its twin in numpy,
// octavo/quant/gguf.py, is the specification: both give the same bits (this file must be compiled without contraction).
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Elements and bytes of one block of a ggml type; {0, 0} for a type that is not known here.
struct BlockFormat {
    size_t elements;
    size_t bytes;
};
BlockFormat block_format(int type);

// blocks * format.bytes bytes at data -> blocks * format.elements values at out: float, or bfloat16 as its bits.
// The type must be known. Uses up to num_threads threads of its own; returns when all is written.
void dequantize(int type, const uint8_t* data, size_t blocks, float* out, int num_threads);
void dequantize(int type, const uint8_t* data, size_t blocks, uint16_t* out, int num_threads);

}  // namespace octavo
