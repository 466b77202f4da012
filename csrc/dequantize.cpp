#include "dequantize.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <thread>
#include <vector>

#include "half.hpp"

namespace octavo {
namespace {

// ggml's numbers, as in octavo/quant/gguf.py
enum Type : int {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    BF16 = 30,
};

// Eight bytes at once: some bits of each, and the values that they mean.
inline uint64_t eight_at(const uint8_t* bytes) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return word;
}
inline uint64_t each(uint8_t byte) { return 0x0101010101010101u * byte; }
inline uint64_t bits_of(const uint8_t* bytes, int shift, uint8_t mask) { return eight_at(bytes) >> shift & each(mask); }
// The bits of a byte, one to each of eight.
inline uint64_t spread(uint64_t byte) { return ((byte * each(1) & 0x8040201008040201u) + each(0x7F)) >> 7 & each(1); }
// value - 2^(bits - 1), as signed bytes.
template <int kBits> inline uint64_t centred(uint64_t values) {
    constexpr uint8_t kSign = 1 << (kBits - 1);
    const uint64_t word = values ^ each(kSign);
    return word | (word & each(kSign)) * (256 / kSign - 2);
}

// To nearest even; a NaN becomes the quiet one of its sign.
inline uint16_t to_bfloat16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16 & 0x8000u) | 0x7fc0u;
    return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Plain formats turn one block of kBytes into kElements floats.

struct PlainF32 {
    static constexpr size_t kElements = 1, kBytes = 4;
    static void decode(const uint8_t* b, float* y) { std::memcpy(y, b, 4); }
};

struct PlainF16 {
    static constexpr size_t kElements = 1, kBytes = 2;
    static void decode(const uint8_t* b, float* y) { *y = half_to_float(b); }
};

struct PlainBF16 {
    static constexpr size_t kElements = 1, kBytes = 2;
    static void decode(const uint8_t* b, float* y) {
        uint16_t bits;
        std::memcpy(&bits, b, 2);
        *y = std::bit_cast<float>(uint32_t(bits) << 16);
    }
};

// Integer formats split a block into values and, for each kInputs of them, a scale and, if kMinimums, what is added. kOffset: added
// to values that begin below 0 for a layout whose values do not. kPacked: where a block has them as Int4Group does.
struct Integer {
    static constexpr int kOffset = 0;
    static constexpr size_t kPacked = 0;
};

// Low nibbles are the first 16 values of a block, high nibbles the last 16; Q5 keeps the fifth bits in 32 bits of their own.
template <bool kFifthBit, bool kMinimum>
struct Simple : Integer {
    static constexpr size_t kHeader = kMinimum ? 4 : 2;
    static constexpr size_t kQuants = kHeader + (kFifthBit ? 4 : 0);
    static constexpr size_t kElements = 32, kBytes = kQuants + 16, kInputs = 32;
    static constexpr bool kMinimums = kMinimum;
    static constexpr int kOffset = kMinimum ? 0 : kFifthBit ? 16 : 8;
    static constexpr size_t kPacked = kFifthBit ? 0 : kQuants;

    static void scale(const uint8_t* b, float* scales, float* minimums) {
        scales[0] = half_to_float(b);
        if constexpr (kMinimum) minimums[0] = half_to_float(b + 2);
    }

    static void split(const uint8_t* b, int8_t* values, float* scales, float* minimums) {
        scale(b, scales, minimums);
        uint32_t fifth = 0;
        if constexpr (kFifthBit) std::memcpy(&fifth, b + kHeader, 4);
        for (int side = 0; side < 2; ++side) {
            for (int i = 0; i < 16; i += 8) {
                uint64_t word = bits_of(b + kQuants + i, side * 4, 15);
                if constexpr (kFifthBit) word |= spread(fifth >> (side * 16 + i) & 255) << 4;
                if constexpr (!kMinimum) word = centred<kFifthBit ? 5 : 4>(word);
                std::memcpy(values + side * 16 + i, &word, 8);
            }
        }
    }
};

struct Eight : Integer {
    static constexpr size_t kElements = 32, kBytes = 34, kInputs = 32;
    static constexpr bool kMinimums = false;
    static void split(const uint8_t* b, int8_t* values, float* scales, float*) {
        scales[0] = half_to_float(b);
        std::memcpy(values, b + 2, 32);
    }
};

struct K2 : Integer {
    static constexpr size_t kElements = 256, kBytes = 84, kInputs = 16;
    static constexpr bool kMinimums = true;
    static void split(const uint8_t* b, int8_t* values, float* scales, float* minimums) {
        const float d = half_to_float(b + 80), dmin = half_to_float(b + 82);
        for (int group = 0; group < 16; ++group) {
            scales[group] = d * float(b[group] & 15);
            minimums[group] = -(dmin * float(b[group] >> 4));
            const uint8_t* quants = b + 16 + group / 8 * 32 + group % 2 * 16;
            const int shift = group % 8 / 2 * 2;
            for (int i = 0; i < 16; i += 8) {
                const uint64_t word = bits_of(quants + i, shift, 3);
                std::memcpy(values + group * 16 + i, &word, 8);
            }
        }
    }
};

struct K3 : Integer {
    static constexpr size_t kElements = 256, kBytes = 110, kInputs = 16;
    static constexpr bool kMinimums = false;
    static void split(const uint8_t* b, int8_t* values, float* scales, float*) {
        const float d = half_to_float(b + 108);
        const uint8_t *high_bits = b, *packed = b + 96;
        for (int group = 0; group < 16; ++group) {
            const int low = packed[group % 8] >> (group / 8 * 4) & 15;
            const int top = packed[8 + group % 4] >> (group / 4 * 2) & 3;
            scales[group] = d * float((low | top << 4) - 32);
            const uint8_t* quants = b + 32 + group / 8 * 32 + group % 2 * 16;
            const uint8_t* high = high_bits + group % 2 * 16;
            const int shift = group % 8 / 2 * 2, bit = group / 2;
            for (int i = 0; i < 16; i += 8) {
                const uint64_t word = centred<3>(bits_of(quants + i, shift, 3) | bits_of(high + i, bit, 1) << 2);
                std::memcpy(values + group * 16 + i, &word, 8);
            }
        }
    }
};

// Q4_K and Q5_K: eight groups of 32 with 6-bit scales and minima in twelve bytes.
template <bool kFifthBit>
struct K45 : Integer {
    static constexpr size_t kElements = 256, kBytes = kFifthBit ? 176 : 144, kInputs = 32;
    static constexpr bool kMinimums = true;
    static void split(const uint8_t* b, int8_t* values, float* scales, float* minimums) {
        const float d = half_to_float(b), dmin = half_to_float(b + 2);
        const uint8_t *high = b + 16, *quants = b + (kFifthBit ? 48 : 16);
        unpack_scales(b + 4, scales, minimums);
        for (int group = 0; group < 8; ++group) {
            scales[group] *= d;
            minimums[group] = -(dmin * minimums[group]);
        }
        for (int pair = 0; pair < 4; ++pair) {
            for (int i = 0; i < 32; ++i) {
                int first = quants[pair * 32 + i] & 15, second = quants[pair * 32 + i] >> 4;
                if constexpr (kFifthBit) {
                    first |= (high[i] >> (pair * 2) & 1) << 4;
                    second |= (high[i] >> (pair * 2 + 1) & 1) << 4;
                }
                values[pair * 64 + i] = int8_t(first);
                values[pair * 64 + 32 + i] = int8_t(second);
            }
        }
    }

    // Six bits each: four groups' in bytes of their own, the others' split between a nibble and the spare two bits.
    static void unpack_scales(const uint8_t* packed, float* scales, float* minima) {
        for (int group = 0; group < 4; ++group) {
            scales[group] = float(packed[group] & 63);
            minima[group] = float(packed[group + 4] & 63);
            scales[group + 4] = float((packed[group + 8] & 15) | (packed[group] >> 6) << 4);
            minima[group + 4] = float(packed[group + 8] >> 4 | (packed[group + 4] >> 6) << 4);
        }
    }
};

struct K6 : Integer {
    static constexpr size_t kElements = 256, kBytes = 210, kInputs = 16;
    static constexpr bool kMinimums = false;
    static void split(const uint8_t* b, int8_t* values, float* scales, float*) {
        const float d = half_to_float(b + 208);
        for (int group = 0; group < 16; ++group) {
            const int half = group / 8, part = group % 8 / 2, side = group % 2 * 16;
            const uint8_t* low = b + half * 64 + part % 2 * 32 + side;
            const uint8_t* high = b + 128 + half * 32 + side;
            const int low_shift = part / 2 * 4, high_shift = part * 2;
            scales[group] = d * float(int8_t(b[192 + group]));
            for (int i = 0; i < 16; i += 8) {
                const uint64_t word = centred<6>(bits_of(low + i, low_shift, 15) | bits_of(high + i, high_shift, 3) << 4);
                std::memcpy(values + group * 16 + i, &word, 8);
            }
        }
    }
};

template <class Format> concept Splits = requires { Format::kInputs; };

// One rounding each: scale * value, and plus the minimum.
template <class Format>
void decode_block(const uint8_t* b, float* y) {
    if constexpr (Splits<Format>) {
        constexpr size_t kInputs = Format::kInputs, kGroups = Format::kElements / kInputs;
        int8_t values[Format::kElements];
        float scales[kGroups], minimums[kGroups];
        Format::split(b, values, scales, minimums);
        for (size_t group = 0; group < kGroups; ++group) {
            for (size_t i = group * kInputs; i < (group + 1) * kInputs; ++i) {
                y[i] = float(values[i]) * scales[group];
                if constexpr (Format::kMinimums) y[i] += minimums[group];
            }
        }
    } else {
        Format::decode(b, y);
    }
}

// What blocks are split into. `packed`: two values in a byte, those of the first 16 of each 32 in low halves.
struct Parts {
    int8_t* values;
    uint16_t *scales, *minimums;
    bool packed;
};

// One block's.
template <class Format>
void split_block(const uint8_t* b, size_t block, const Parts& to, float* scales, float* minimums) {
    constexpr size_t kElements = Format::kElements;
    int8_t values[kElements];
    int8_t* out = to.values + block * kElements / (to.packed ? 2 : 1);
    if constexpr (Format::kPacked != 0) {
        if (to.packed) {
            Format::scale(b, scales, minimums);
            std::memcpy(out, b + Format::kPacked, kElements / 2);
            return;
        }
    }
    Format::split(b, values, scales, minimums);
    if (!to.packed) {
        for (size_t i = 0; i < kElements; ++i) out[i] = static_cast<int8_t>(values[i] + Format::kOffset);
        return;
    }
    const auto* from = reinterpret_cast<const uint8_t*>(values);
    for (size_t at = 0; at < kElements / 2; at += 8) {
        const uint8_t* lows = from + at / 16 * 32 + at % 16;
        const uint64_t word = bits_of(lows, 0, 15) | bits_of(lows + 16, 0, 15) << 4;
        std::memcpy(out + at, &word, 8);
    }
}

// Returns whether all are finite.
inline bool put_halves(const float* numbers, size_t count, uint16_t* to) {
    bool finite = true;
    for (size_t i = 0; i < count; ++i) {
        to[i] = float_to_half(numbers[i]);
        finite &= (to[i] & 0x7c00) != 0x7c00;
    }
    return finite;
}

// Returns whether all scales and minimums are finite.
template <class Format>
bool split_blocks(const uint8_t* data, size_t begin, size_t end, const Parts& to) {
    constexpr size_t kGroups = Format::kElements / Format::kInputs, kStep = 512 / Format::kElements;
    float scales[kStep * kGroups], minimums[kStep * kGroups];
    bool finite = true;
    for (size_t start = begin; start < end; start += kStep) {
        const size_t count = std::min(kStep, end - start);
        for (size_t i = 0; i < count; ++i) {
            split_block<Format>(data + (start + i) * Format::kBytes, start + i, to, scales + i * kGroups, minimums + i * kGroups);
        }
        finite &= put_halves(scales, count * kGroups, to.scales + start * kGroups);
        if constexpr (Format::kOffset != 0) {
            for (size_t i = 0; i < count * kGroups; ++i) minimums[i] = scales[i] * float(-Format::kOffset);
        }
        if (to.minimums) finite &= put_halves(minimums, count * kGroups, to.minimums + start * kGroups);
    }
    return finite;
}

template <class Format>
void decode_blocks(const uint8_t* data, size_t blocks, float* out) {
    for (size_t i = 0; i < blocks; ++i) decode_block<Format>(data + i * Format::kBytes, out + i * Format::kElements);
}

template <class Format>
void decode_blocks(const uint8_t* data, size_t blocks, uint16_t* out) {
    constexpr size_t kStep = 512 / Format::kElements;
    float values[512];
    for (size_t start = 0; start < blocks; start += kStep) {
        const size_t count = std::min(kStep, blocks - start);
        decode_blocks<Format>(data + start * Format::kBytes, count, values);
        uint16_t* to = out + start * Format::kElements;
        for (size_t i = 0; i < count * Format::kElements; ++i) to[i] = to_bfloat16(values[i]);
    }
}

// Calls visit with the format of a type; false if the type is unknown.
template <class Visit>
bool with_format(int type, Visit&& visit) {
    switch (type) {
        case F32: visit(PlainF32{}); return true;
        case F16: visit(PlainF16{}); return true;
        case BF16: visit(PlainBF16{}); return true;
        case Q4_0: visit(Simple<false, false>{}); return true;
        case Q4_1: visit(Simple<false, true>{}); return true;
        case Q5_0: visit(Simple<true, false>{}); return true;
        case Q5_1: visit(Simple<true, true>{}); return true;
        case Q8_0: visit(Eight{}); return true;
        case Q2_K: visit(K2{}); return true;
        case Q3_K: visit(K3{}); return true;
        case Q4_K: visit(K45<false>{}); return true;
        case Q5_K: visit(K45<true>{}); return true;
        case Q6_K: visit(K6{}); return true;
        default: return false;
    }
}

// Below this a thread costs more than it saves.
constexpr size_t kMinElementsPerThread = 1 << 17;

// Calls part(begin, end) for all blocks, on up to so many threads.
template <class Format, class Part>
void in_parts(size_t blocks, int num_threads, const Part& part) {
    const size_t useful = blocks * Format::kElements / kMinElementsPerThread + 1;
    const size_t threads = std::clamp<size_t>(size_t(std::max(num_threads, 1)), 1, useful);
    const auto one = [&](size_t index) { part(blocks * index / threads, blocks * (index + 1) / threads); };
    std::vector<std::jthread> others;
    for (size_t index = 1; index < threads; ++index) others.emplace_back(one, index);
    one(0);
}

template <class Out>
void dispatch(int type, const uint8_t* data, size_t blocks, Out* out, int num_threads) {
    with_format(type, [&](auto format) {
        using Format = decltype(format);
        in_parts<Format>(blocks, num_threads, [=](size_t begin, size_t end) {
            decode_blocks<Format>(data + begin * Format::kBytes, end - begin, out + begin * Format::kElements);
        });
    });
}

}  // namespace

BlockFormat block_format(int type) {
    BlockFormat found{0, 0, 0, false, 0};
    with_format(type, [&](auto format) {
        using Format = decltype(format);
        found = {Format::kElements, Format::kBytes, 0, false, 0};
        if constexpr (Splits<Format>) {
            found.inputs = Format::kInputs;
            found.minimums = Format::kMinimums;
            found.offset = Format::kOffset;
        }
    });
    return found;
}

bool split_blocks(int type, const uint8_t* data, size_t blocks, uint8_t* values, bool packed, uint16_t* scales, uint16_t* minimums,
                  int num_threads) {
    const Parts to{reinterpret_cast<int8_t*>(values), scales, minimums, packed};
    std::atomic<bool> finite = true;
    with_format(type, [&](auto format) {
        using Format = decltype(format);
        if constexpr (Splits<Format>) {
            in_parts<Format>(blocks, num_threads, [&](size_t begin, size_t end) {
                if (!split_blocks<Format>(data, begin, end, to)) finite = false;
            });
        }
    });
    return finite;
}

void dequantize(int type, const uint8_t* data, size_t blocks, float* out, int num_threads) {
    dispatch(type, data, blocks, out, num_threads);
}

void dequantize(int type, const uint8_t* data, size_t blocks, uint16_t* out, int num_threads) {
    dispatch(type, data, blocks, out, num_threads);
}

}  // namespace octavo
