#include "compact.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels.hpp"

namespace octavo {

namespace {

constexpr uint8_t kNoCode = 16;

// The code of each upper byte, or kNoCode. Leaves what the codes stand for in highs. `count` is a multiple of 4.
std::array<uint8_t, 256> choose_codes(const uint16_t* block, int64_t count, uint8_t* highs) {
    // Of every fourth number each: neighbours are often alike, and then a count would wait for the one before.
    std::array<std::array<uint32_t, 256>, 4> often{};
    for (int64_t i = 0; i < count; i += 4) {
        for (int lane = 0; lane < 4; ++lane) ++often[lane][block[i + lane] >> 8];
    }
    for (int high = 0; high < 256; ++high) often[0][high] += often[1][high] + often[2][high] + often[3][high];
    std::array<uint8_t, 256> order, codes;
    std::iota(order.begin(), order.end(), uint8_t{0});
    std::stable_sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return often[0][a] > often[0][b]; });
    codes.fill(kNoCode);
    for (uint8_t code = 0; code < kNoCode; ++code) {
        highs[code] = order[code];
        codes[order[code]] = code;
    }
    return codes;
}

// Element i of the 64 that a pair of inputs has in 32 columns, the second half of them in the next tile.
const uint16_t* element(const uint16_t* first, int64_t i) { return first + i / 32 * kTileElements + i % 32; }

} // namespace

void encode_block(const uint16_t* block, int64_t steps, uint8_t* to, uint8_t* highs, std::vector<uint32_t>& exceptions) {
    const std::array<uint8_t, 256> codes = choose_codes(block, steps * 2 * kTileElements, highs);
    const int64_t pairs = steps * kDepthStep / 2;
    for (int64_t pair = 0; pair < pairs; pair += 2, to += kGroupBytes) {
        const uint16_t* first = block + pair / 16 * 2 * kTileElements + pair % 16 * 32;
        const uint16_t* second = first + 32;
        int any = 0;
        for (int64_t i = 0; i < 64; i += 8) { // as long as places follow one another
            const uint16_t *a = element(first, i), *b = element(second, i);
            uint8_t* place = to + compact_place(i);
            for (int64_t j = 0; j < 8; ++j) {
                const int low = codes[a[j] >> 8], high = codes[b[j] >> 8];
                any |= low | high;
                place[j] = static_cast<uint8_t>(low % kNoCode | high << 4);
            }
            for (int64_t j = 0; j < 8; ++j) place[64 + j] = static_cast<uint8_t>(a[j]);
            for (int64_t j = 0; j < 8; ++j) place[128 + j] = static_cast<uint8_t>(b[j]);
        }
        if (!(any & kNoCode)) continue;
        for (int64_t i = 0; i < 128; ++i) {
            const int upper = *element(i < 64 ? first : second, i % 64) >> 8;
            if (codes[upper] == kNoCode) exceptions.push_back(static_cast<uint32_t>((pair * 64 + i) << 8 | upper));
        }
    }
}

} // namespace octavo
