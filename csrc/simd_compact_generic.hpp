// Reading compact blocks in plain C++. Included inside the namespace of its user.

// What the codes of a compact block stand for.
typedef const uint8_t* GroupTable;
inline GroupTable group_table(const uint8_t* highs) { return highs; }

// A pair of inputs, the first or the second of a group: of columns 0 to 15, and of 16 to 31.
inline void unpack_half(const uint8_t* group, int half, GroupTable table, uint16_t* left, uint16_t* right) {
    const uint8_t* lower = group + 64 + half * 64;
    for (int64_t i = 0; i < 64; ++i) {
        const int64_t place = compact_place(i);
        uint16_t* to = i < 32 ? left : right; // as one expression with the next line GCC's undefined-behaviour sanitizer gets it wrong
        to[i % 32] = static_cast<uint16_t>(lower[place] | table[group[place] >> half * 4 & 15] << 8);
    }
}
