#include "compact.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels.hpp"

namespace octavo {

namespace {

constexpr uint8_t kNoCode = 16;

// The code of each upper byte, or kNoCode. Leaves what the codes stand for in highs.
std::array<uint8_t, 256> choose_codes(const uint16_t* block, int64_t count, uint8_t* highs) {
    std::array<int64_t, 256> often{};
    for (int64_t i = 0; i < count; ++i) ++often[block[i] >> 8];
    std::array<uint8_t, 256> order, codes;
    std::iota(order.begin(), order.end(), uint8_t{0});
    std::stable_sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return often[a] > often[b]; });
    codes.fill(kNoCode);
    for (uint8_t code = 0; code < kNoCode; ++code) {
        highs[code] = order[code];
        codes[order[code]] = code;
    }
    return codes;
}

} // namespace

void encode_block(const uint16_t* block, int64_t steps, uint8_t* to, uint8_t* highs, std::vector<uint32_t>& exceptions) {
    const std::array<uint8_t, 256> codes = choose_codes(block, steps * 2 * kTileElements, highs);
    const int64_t pairs = steps * kDepthStep / 2;
    for (int64_t pair = 0; pair < pairs; ++pair) {
        const uint16_t* first = block + pair / 16 * 2 * kTileElements + pair % 16 * 32;
        const int shift = pair % 2 ? 4 : 0;
        uint8_t* group = to + pair / 2 * kGroupBytes;
        uint8_t* lower = group + 64 + pair % 2 * 64;
        for (int64_t i = 0; i < 64; ++i) {
            const uint16_t value = first[i / 32 * kTileElements + i % 32];
            const int64_t place = compact_place(i);
            uint8_t code = codes[value >> 8];
            if (code == kNoCode) {
                exceptions.push_back(static_cast<uint32_t>((pair * 64 + i) << 8 | value >> 8));
                code = 0;
            }
            group[place] = static_cast<uint8_t>((shift ? group[place] : 0) | code << shift);
            lower[place] = static_cast<uint8_t>(value);
        }
    }
}

} // namespace octavo
