// The kernels of products with integer weights. Included inside the instruction set's own namespace, after its vectors (simd_*.hpp) and
// its dots (simd_integer_*.hpp).

// clang-format off
#include "kernels_math.hpp"
#include "kernels_pieces.hpp"
#include "kernels_outputs.hpp"
#include "kernels_groups.hpp"
#include "kernels_records.hpp"
#include "kernels_dots.hpp"
#ifdef OCTAVO_GROUP_PAIRS
#include "kernels_pairs.hpp"
#endif
#include "kernels_integer.hpp"
#include "kernels_ceilings_integer.hpp"
#include "kernels_quantize.hpp"
// clang-format on
