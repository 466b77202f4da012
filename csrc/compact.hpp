// bf16 weights in 12 bits each, without loss: where reading them takes the time of a product, a quarter of it is saved.
//
// The upper byte of a bf16 number, its sign and all but the last bit of its exponent, takes few values among those of 32 columns.
// In a compact block the 16 most frequent ones have codes of 4 bits; a number with another one is an exception, listed by place.
// The order is that of the products: pairs of inputs, of each its 32 columns as 64 elements. Two pairs are a group: 64 bytes
// with the codes of both, the first one's in the lower halves, then 64 lower bytes of the first and 64 of the second. Element i
// of 64 lies where instructions that interleave bytes within 16 of them put it in order; see compact_place.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// Encodes a packed bf16 block of so many depth steps into `to`, and what its codes stand for into highs[16]. Into exceptions go
// place << 8 | upper byte, ascending. There are fewer than 2^24 elements.
void encode_block(const uint16_t* block, int64_t steps, uint8_t* to, uint8_t* highs, std::vector<uint32_t>& exceptions);

} // namespace octavo
