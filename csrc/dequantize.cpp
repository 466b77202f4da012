#include "dequantize.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <vector>

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

inline float half_bits(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu, sign = uint32_t(half & 0x8000u) << 16;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    bits += magnitude >= 0x7c00u ? 112u << 23 : 0;
    // a subnormal has no hidden bit: give it one and subtract it again
    const float fixed = std::bit_cast<float>(bits + (1u << 23)) - std::bit_cast<float>(113u << 23);
    const uint32_t chosen = magnitude < 0x400u ? std::bit_cast<uint32_t>(fixed) : bits;
    return std::bit_cast<float>(chosen | sign);
}

inline float half_at(const uint8_t* bytes) {
    uint16_t half;
    std::memcpy(&half, bytes, 2);
    return half_bits(half);
}

// To nearest even; a NaN becomes the quiet one of its sign.
inline uint16_t to_bfloat16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16 & 0x8000u) | 0x7fc0u;
    return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Each format below turns one block of kBytes into kElements floats.

struct PlainF32 {
    static constexpr size_t kElements = 1, kBytes = 4;
    static void decode(const uint8_t* b, float* y) { std::memcpy(y, b, 4); }
};

struct PlainF16 {
    static constexpr size_t kElements = 1, kBytes = 2;
    static void decode(const uint8_t* b, float* y) { *y = half_at(b); }
};

struct PlainBF16 {
    static constexpr size_t kElements = 1, kBytes = 2;
    static void decode(const uint8_t* b, float* y) {
        uint16_t bits;
        std::memcpy(&bits, b, 2);
        *y = std::bit_cast<float>(uint32_t(bits) << 16);
    }
};

// Low nibbles are the first 16 values of a block, high nibbles the last 16; Q5 keeps the fifth bits in 32 bits of their own.
template <bool kFifthBit, bool kMinimum>
struct Simple {
    static constexpr size_t kHeader = kMinimum ? 4 : 2;
    static constexpr size_t kQuants = kHeader + (kFifthBit ? 4 : 0);
    static constexpr size_t kElements = 32, kBytes = kQuants + 16;

    static void decode(const uint8_t* b, float* y) {
        const float scale = half_at(b), minimum = kMinimum ? half_at(b + 2) : 0.0f;
        constexpr int kCentre = kMinimum ? 0 : kFifthBit ? 16 : 8;
        uint32_t fifth = 0;
        if constexpr (kFifthBit) std::memcpy(&fifth, b + kHeader, 4);
        for (int i = 0; i < 16; ++i) {
            int low = b[kQuants + i] & 15, high = b[kQuants + i] >> 4;
            if constexpr (kFifthBit) {
                low |= int(fifth >> i & 1) << 4;
                high |= int(fifth >> (i + 16) & 1) << 4;
            }
            y[i] = float(low - kCentre) * scale;
            y[i + 16] = float(high - kCentre) * scale;
        }
        if constexpr (kMinimum) {
            for (int i = 0; i < 32; ++i) y[i] += minimum;
        }
    }
};

struct Eight {
    static constexpr size_t kElements = 32, kBytes = 34;
    static void decode(const uint8_t* b, float* y) {
        const float scale = half_at(b);
        for (int i = 0; i < 32; ++i) y[i] = float(int8_t(b[2 + i])) * scale;
    }
};

struct K2 {
    static constexpr size_t kElements = 256, kBytes = 84;
    static void decode(const uint8_t* b, float* y) {
        const float d = half_at(b + 80), dmin = half_at(b + 82);
        for (int group = 0; group < 16; ++group) {
            const float scale = d * float(b[group] & 15), minimum = dmin * float(b[group] >> 4);
            const uint8_t* quants = b + 16 + group / 8 * 32 + group % 2 * 16;
            const int shift = group % 8 / 2 * 2;
            for (int i = 0; i < 16; ++i) y[group * 16 + i] = float(quants[i] >> shift & 3) * scale - minimum;
        }
    }
};

struct K3 {
    static constexpr size_t kElements = 256, kBytes = 110;
    static void decode(const uint8_t* b, float* y) {
        const float d = half_at(b + 108);
        const uint8_t *high_bits = b, *packed = b + 96;
        for (int group = 0; group < 16; ++group) {
            const int low = packed[group % 8] >> (group / 8 * 4) & 15;
            const int top = packed[8 + group % 4] >> (group / 4 * 2) & 3;
            const float scale = d * float((low | top << 4) - 32);
            const uint8_t* quants = b + 32 + group / 8 * 32 + group % 2 * 16;
            const uint8_t* high = high_bits + group % 2 * 16;
            const int shift = group % 8 / 2 * 2, bit = group / 2;
            for (int i = 0; i < 16; ++i) {
                const int quant = (quants[i] >> shift & 3) + (high[i] >> bit & 1) * 4 - 4;
                y[group * 16 + i] = float(quant) * scale;
            }
        }
    }
};

// Q4_K and Q5_K: eight groups of 32 with 6-bit scales and minima in twelve bytes.
template <bool kFifthBit>
struct K45 {
    static constexpr size_t kElements = 256, kBytes = kFifthBit ? 176 : 144;
    static void decode(const uint8_t* b, float* y) {
        const float d = half_at(b), dmin = half_at(b + 2);
        const uint8_t *high = b + 16, *quants = b + (kFifthBit ? 48 : 16);
        float scales[8], minima[8];
        unpack_scales(b + 4, scales, minima);
        for (int pair = 0; pair < 4; ++pair) {
            const float scale0 = d * scales[pair * 2], minimum0 = dmin * minima[pair * 2];
            const float scale1 = d * scales[pair * 2 + 1], minimum1 = dmin * minima[pair * 2 + 1];
            for (int i = 0; i < 32; ++i) {
                int first = quants[pair * 32 + i] & 15, second = quants[pair * 32 + i] >> 4;
                if constexpr (kFifthBit) {
                    first |= (high[i] >> (pair * 2) & 1) << 4;
                    second |= (high[i] >> (pair * 2 + 1) & 1) << 4;
                }
                y[pair * 64 + i] = float(first) * scale0 - minimum0;
                y[pair * 64 + 32 + i] = float(second) * scale1 - minimum1;
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

struct K6 {
    static constexpr size_t kElements = 256, kBytes = 210;
    static void decode(const uint8_t* b, float* y) {
        const float d = half_at(b + 208);
        for (int group = 0; group < 16; ++group) {
            const int half = group / 8, part = group % 8 / 2, side = group % 2 * 16;
            const uint8_t* low = b + half * 64 + part % 2 * 32 + side;
            const uint8_t* high = b + 128 + half * 32 + side;
            const int low_shift = part / 2 * 4, high_shift = part * 2;
            const float scale = d * float(int8_t(b[192 + group]));
            for (int i = 0; i < 16; ++i) {
                const int quant = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
                y[group * 16 + i] = float(quant - 32) * scale;
            }
        }
    }
};

template <class Format>
void decode_blocks(const uint8_t* data, size_t blocks, float* out) {
    for (size_t i = 0; i < blocks; ++i) Format::decode(data + i * Format::kBytes, out + i * Format::kElements);
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

template <class Format, class Out>
void run(const uint8_t* data, size_t blocks, Out* out, int num_threads) {
    const size_t useful = blocks * Format::kElements / kMinElementsPerThread + 1;
    const size_t threads = std::clamp<size_t>(size_t(std::max(num_threads, 1)), 1, useful);
    const auto part = [=](size_t index) {
        const size_t begin = blocks * index / threads, end = blocks * (index + 1) / threads;
        decode_blocks<Format>(data + begin * Format::kBytes, end - begin, out + begin * Format::kElements);
    };
    std::vector<std::jthread> others;
    for (size_t index = 1; index < threads; ++index) others.emplace_back(part, index);
    part(0);
}

template <class Out>
void dispatch(int type, const uint8_t* data, size_t blocks, Out* out, int num_threads) {
    with_format(type, [&](auto format) { run<decltype(format)>(data, blocks, out, num_threads); });
}

}  // namespace

BlockFormat block_format(int type) {
    BlockFormat found{0, 0};
    with_format(type, [&](auto format) { found = {decltype(format)::kElements, decltype(format)::kBytes}; });
    return found;
}

void dequantize(int type, const uint8_t* data, size_t blocks, float* out, int num_threads) {
    dispatch(type, data, blocks, out, num_threads);
}

void dequantize(int type, const uint8_t* data, size_t blocks, uint16_t* out, int num_threads) {
    dispatch(type, data, blocks, out, num_threads);
}

}  // namespace octavo
