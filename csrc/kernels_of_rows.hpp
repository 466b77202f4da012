// What the kernels of every instruction set begin with. Included inside its own namespace, after its vectors (simd_*.hpp).

// clang-format off
#include "kernels_math.hpp"
#include "kernels_pieces.hpp"
#include "kernels_outputs.hpp"
#include "kernels_rows.hpp"
#include "kernels_tiles.hpp"
#include "kernels_linear.hpp"
// clang-format on
