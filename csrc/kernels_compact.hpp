// Reading compact blocks of bf16 weights; see compact.hpp. Included inside the instruction set's own namespace.

// A number whose upper byte is an exception.
inline void set_upper(uint16_t& value, const uint32_t* exception) {
    value = static_cast<uint16_t>((value & 255) | (*exception & 255) << 8);
}

// Column n: the elements `first` and `first` + 1 of each pair of inputs.
inline void embed_compact(const EmbeddingArgs& a, int64_t n, float* out) {
    const int64_t block = n / kColumnBlock, first = n % kColumnBlock * 2;
    const uint8_t* from = static_cast<const uint8_t*>(a.table) + block * compact_block_bytes(a.k);
    const uint8_t* highs = a.compact->highs + block * 16;
    const float scale = a.compact->scales ? a.compact->scales[n] : 1.0f;
    const auto put = [&](int64_t k, int high) {
        const uint8_t lower = from[k / 4 * kGroupBytes + 64 + k / 2 % 2 * 64 + compact_place(first + k % 2)];
        const float value = from_bf16(static_cast<uint16_t>(lower | high << 8));
        out[k] = scale == 1.0f ? value : value * scale; // a denormal number would be lost
    };
    for (int64_t k = 0; k < a.k; ++k) {
        const int codes = from[k / 4 * kGroupBytes + compact_place(first + k % 2)];
        put(k, highs[codes >> k / 2 % 2 * 4 & 15]);
    }
    for (const uint32_t* e = a.compact->exceptions + a.compact->first[block]; *e != kNoException; ++e) {
        const int64_t place = place_of(e), k = place / 64 * 2 + place % 2;
        if (place % 64 / 2 * 2 == first && k < a.k) put(k, *e & 255);
    }
}

void embedding_compact(const EmbeddingArgs& a, int64_t row0, int64_t row1) {
    for (int64_t r = row0; r < row1; ++r) embed_compact(a, a.ids[r], a.out + r * a.k);
}

constexpr KernelTable with_compact(KernelTable table, decltype(KernelTable::linear_compact) linear) {
    table.linear_compact = linear;
    table.embedding_compact = embedding_compact;
    return table;
}
