// What the instruction-set translation units and the rest share: plain argument structs and the table of kernels.
//
// A kernel computes a range of units of one op on one thread; the drivers cut ops into units and the thread pool claims
// them. Plain data; the few functions here are small enough to be inlined always. tests/ops/test_instruction_sets.py checks that
// the linker shares none that was compiled for one instruction set; a build without optimization does not have this property. The
// row contract holds for every kernel: the arithmetic of a row never depends on the other rows, on how many there are, or on which
// unit or thread computes it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ceilings.hpp"
#include "even_tiles.hpp"
#include "half.hpp"
#include "pieces.hpp"

namespace octavo {

constexpr int kColumnBlock = 32;        // output columns in one packed block of weights
constexpr int kDepthStep = 32;          // bf16 weights are padded to a multiple of this many inputs
constexpr int kTileElements = 16 * 32; // one 1 KB tile: 16 pairs of inputs x 16 columns x 2
constexpr int kGroupElements = 128;     // of a compact block: two pairs of inputs x 32 columns x 2
constexpr int kGroupBytes = kGroupElements * 3 / 2;
constexpr int kFixedInputs = 64;        // that share an exponent where bf16 weights are multiplied in whole numbers
constexpr float kMostLost = 0x1p-8f;    // of the length of any output's weights by that: what rounding a number to bf16 may lose
constexpr int kTokenGroup = 16;         // positions stored together in a KV block, where its size allows
constexpr int kLeastGroup = 4;          // and at least
constexpr int kTokenTile = 64;          // positions of one softmax step, aligned to absolute position
constexpr int kPartition = 512;         // positions accumulated afresh, then merged, aligned to absolute position
constexpr int kShareBlock = 512;        // logits whose exponentials are summed together
constexpr int kMaxBlock = 64;           // logits whose maximum is taken together

// Where element i of 64 has its code and its lower byte in a compact block; see compact.hpp.
constexpr int64_t compact_place(int64_t i) { return i % 32 / 8 * 16 + i / 32 * 8 + i % 8; }

constexpr uint32_t kNoException = ~uint32_t{0}; // after the last of a block
constexpr int64_t kMostPlaces = 1 << 24;        // of a block's elements there are fewer

// What compact blocks need beside them.
struct Compact {
    const uint8_t* highs;       // [blocks][16]: the upper byte that each code stands for
    const uint32_t* exceptions; // of each block: place << 8 | upper byte, ascending; then kNoException
    const int64_t* first;       // [blocks]: where those of each begin
    // Of blocks that are multiplied in whole numbers, else null; see kernels_fixed.hpp.
    const uint8_t* exponents; // [blocks][groups of kFixedInputs]: the largest of each
    const float* scales;      // [blocks][kColumnBlock]: columns are their numbers times these powers of two
};

// Of k inputs, how many groups share exponents; and what a row of them takes as whole numbers, with its scales.
constexpr int64_t fixed_groups(int64_t k) { return (k + kFixedInputs - 1) / kFixedInputs; }
constexpr int64_t fixed_row_elements(int64_t k) { return ((k + kDepthStep - 1) / kDepthStep * kDepthStep + 2 * fixed_groups(k) + 31) / 32 * 32; }

// x[rows, k] times packed weight[n, k] transposed, plus bias, plus residual.
struct LinearArgs {
    const void* x;
    int64_t x_stride; // elements
    const void* weight;
    const float* bias;     // may be null
    const float* residual; // may be null, may be out; rows are as far apart as those of out
    float* out;
    int64_t rows, n, k;
    int64_t out_stride;                   // elements
    int64_t first_row = 0, first_column = 0; // what lies at `out`
    int64_t fetch_end = 0; // blocks below it may be fetched into the cache while the one before is multiplied
    Reading reading{}; // of this thread; where rows come in chunks only what is after its last unit, and that only there
    Pieces* pieces = nullptr;
    const Compact* compact = nullptr; // of weights in compact blocks
    bool past_caches = false; // whole vectors of the result, which is then aligned to them, go to memory at once
    Tuning tuning = Tuning::common;
};

struct PackArgs {
    const void* const* columns; // what becomes each of them: [n][k]
    void* dst;
    int64_t n, k;
    bool src_bf16, dst_bf16;
    int64_t first_block = 0; // which is at dst
};

// A packed block to be made compact and multiplied in whole numbers: numbers of columns change to what they are divided by scales.
struct FixBlockArgs {
    uint16_t* block;
    int64_t k;
    uint8_t* exponents;     // [groups]
    float *scales, *errors; // [kColumnBlock]; the lengths of what columns lose, no less than they are
};

struct FixRowsArgs {
    const uint16_t* x; // bf16 [rows, k]
    int16_t* out;      // [rows, fixed_row_elements(k)]
    int64_t k;
};

struct EmbeddingArgs {
    const int32_t* ids;
    const void* table; // packed
    float* out;
    int64_t n, k;
    bool bf16;
    const Compact* compact; // of a table in compact blocks
};

struct NormArgs {
    const float* x;
    const float* weight;
    void* out;
    int64_t size;
    float eps;
    bool out_bf16;
};

// One fused row of q, k and v heads.
struct HeadsArgs {
    float* qkv;
    int64_t stride;
    int32_t first_head, num_heads, head_dim;
    const float* weight; // head norm
    float eps;
    const int32_t* positions; // rotary
    const float* cos_sin;
};

struct GatedArgs {
    const float* gate_up;
    void* out;
    int64_t size;
    bool out_bf16;
};

// The product of a gated weight: of each row a block of gates, then the block of what they let through.
struct GatedBlockArgs {
    const float* sums; // [rows, 2 * kColumnBlock]
    const float* bias; // of the gates; of the rest `size` further; may be null
    void* out;
    int64_t rows, size, out_stride; // size: columns of the whole result
    bool out_bf16;
};

enum class KVType { fp32, bf16, int8 };

struct AttentionArgs {
    const float* qkv;
    int64_t stride;
    const int32_t* slots; // of each row; -1: not stored
    void* kv;             // one layer: [block][kv_head] of head_bytes each; see kernels_kv.hpp
    void* out;
    const int32_t* query_start;
    const int32_t* seq_lens;
    const int32_t* tables;
    int64_t table_width;
    int32_t num_heads, num_kv_heads, head_dim, block_size, num_blocks;
    int64_t head_bytes; // of one kv head in a block
    int32_t window;     // 0: none
    float scale;
    KVType kv_type;
    bool out_bf16;
    Tuning tuning; // how keys and values are asked for
};

// The rows [row0, row1) of the step, all of sequence seq, and the query heads of one kv head, over the kPartition-sized
// partitions [part0, part1) of what they see. Without a state the unit covers all partitions and writes the output, from row
// out_row of it on.
struct AttentionUnit {
    int32_t seq, kv_head;
    int32_t row0, row1, out_row;
    int32_t part0, part1;
    float* state;
};

// Columns [first_column, first_column + columns) of a product, to be held against the best of each row so far.
struct BestArgs {
    const float* sums; // [rows, stride]
    int64_t rows, stride, first_column, columns;
    float* values;   // of each row; minus infinity at first, plus infinity from a NaN on
    int32_t* places; // their columns, the lowest among equals
    const uint32_t* allowed; // of the first row; a bit for each column: 0 where it may not be the best. Null: all may
    int64_t allowed_stride;
};

// A block of columns of a rough product. A column is off the exact one by no more than the row's length times its per_input and
// what quantizing has changed of the row times its per_error.
struct PromiseArgs {
    const float* sums; // [rows, stride]
    int64_t rows, stride, first_column, columns;
    const float *per_input, *per_error; // of all columns
    const float *lengths, *changes;     // of each row
    float* floors;                      // of each row: what its largest surely reaches; minus infinity at first
    float* tops; // of each row: the most that a column of the block can be; minus infinity where it surely is not the largest
    int64_t tops_stride;
    const uint32_t* allowed; // as in BestArgs
    int64_t allowed_stride;
};

// How linear_bf16 wants x.
enum class Activation { fp32, bf16, bf16_padded }; // padded: rows hold zeros up to a multiple of kDepthStep

// Of some logits.
struct Reached {
    int64_t count;
    double share; // together
};

// Shares stay of logits above `least`, and of those that equal it before the place `end`, if they are not below min_share; the others
// become 0. Sums and maxima are those of the table's `shares` and `block_maxima`.
struct KeepArgs {
    const float *x, *maxima;
    int64_t n;
    float least;
    int64_t end;
    float min_share;
    float* shares;
    double* sums;
};

struct KernelTable {
    const char* isa;
    Activation activation;
    int64_t rows_of_chunk; // at least so many meet a panel of weights: with fewer, weights would be fetched too often
    int64_t rows_of_part;  // so many are worth it that a thread has rows of its own, and fetches and unpacks all weights for them

    void (*linear_bf16)(const LinearArgs&, int64_t row0, int64_t row1, int64_t block0, int64_t block1);
    void (*linear_f32)(const LinearArgs&, int64_t row0, int64_t row1, int64_t block0, int64_t block1);
    void (*pack)(const PackArgs&, int64_t block0, int64_t block1);
    void (*expand_bf16)(const uint16_t* src, float* dst, int64_t count);
    void (*embedding)(const EmbeddingArgs&, int64_t row0, int64_t row1);
    void (*rms_norm)(const NormArgs&, int64_t row0, int64_t row1);
    void (*head_norm)(const HeadsArgs&, int64_t row0, int64_t row1);
    void (*rotary)(const HeadsArgs&, int64_t row0, int64_t row1);
    void (*silu_and_mul)(const GatedArgs&, int64_t row0, int64_t row1);
    void (*silu_and_mul_block)(const GatedBlockArgs&);

    // Stores k and v of rows [row0, row1) in their slots.
    void (*write_kv)(const AttentionArgs&, int64_t row0, int64_t row1);
    // Floats of scratch that a unit of so many query rows needs.
    int64_t (*attention_scratch)(const AttentionArgs&, int64_t rows);
    // Floats of a unit's state; a multiple of a cache line.
    int64_t (*attention_state)(const AttentionArgs&, int64_t rows);
    // Computes `count` units with scratch for the largest; stores k and v of a row that is its sequence's only one. False: a
    // block id out of range; that unit's output is then not written.
    bool (*attention)(const AttentionArgs&, const AttentionUnit*, int64_t count, float* scratch);
    // Merges `count` states that follow one another at unit.state, in order, and writes the output.
    void (*attention_merge)(const AttentionArgs&, const AttentionUnit&, int64_t count);

    // Logits. NaN counts as minus infinity, but in argmax, which is -1 where a logit is NaN or infinite, or all are impossible.
    int64_t (*argmax)(const float* x, int64_t n);
    // The same of those whose bit is set; out = x there, minus infinity elsewhere.
    int64_t (*masked_argmax)(const float* x, const uint32_t* allowed, int64_t n, float* out);
    // The same in parts, in any order: takes a few more columns into values and places.
    void (*best_of_block)(const BestArgs&);
    // Of a rough product: what it says of a block of columns.
    void (*promise_of_block)(const PromiseArgs&);
    // shares[i] = exp((x[i] - max) * inverse_temperature); sums[b] over block b of kShareBlock of them.
    void (*shares)(const float* x, int64_t n, float max, float inverse_temperature, float* shares, double* sums);
    // maxima[b] = the largest of block b of kMaxBlock logits.
    void (*block_maxima)(const float* x, int64_t n, float* maxima);
    // Those that are not below `least`, which is finite.
    Reached (*reached)(const float* x, const float* shares, const float* maxima, int64_t n, float least);
    // To places, ascending, where they are in [least, end), or from `least` on if `end` is infinite; how many.
    int64_t (*places)(const float* x, const float* maxima, int64_t n, float least, float end, int32_t* places);
    void (*keep)(const KeepArgs&);

    const VectorCeilings* ceilings;
    const PeakKernel* bf16_peak; // of linear_bf16, or where integer kernels bring nothing better of linear_compact

    // Of weights in compact blocks. Null: there are to be none.
    void (*linear_compact)(const LinearArgs&, int64_t row0, int64_t row1, int64_t block0, int64_t block1) = nullptr;
    void (*embedding_compact)(const EmbeddingArgs&, int64_t row0, int64_t row1) = nullptr;
    // Where compact blocks are multiplied in whole numbers, else null. fix_block, false: it is to be no compact block.
    bool (*fix_block)(const FixBlockArgs&) = nullptr;
    void (*fix_rows)(const FixRowsArgs&, int64_t row0, int64_t row1) = nullptr;
    // To changes[row]: the length of what that has changed of a row, times `times`; no less than it is.
    void (*add_changes)(const FixRowsArgs&, float times, float* changes, int64_t row0, int64_t row1) = nullptr;
};

const KernelTable* generic_kernels();
const KernelTable* amx_emulated_kernels();
#ifdef OCTAVO_HAVE_AVX2
const KernelTable* avx2_kernels();
#endif
#ifdef OCTAVO_HAVE_AVX512
const KernelTable* avx512_kernels();
#endif
#ifdef OCTAVO_HAVE_AVX512_BF16
const KernelTable* avx512_bf16_kernels();
#endif
#ifdef OCTAVO_HAVE_AMX
const KernelTable* amx_kernels();
#endif

} // namespace octavo
