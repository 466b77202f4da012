// Reading compact blocks with AVX-512. Included inside the instruction set's own namespace, after simd_avx512.hpp.

// What the codes of a compact block stand for.
typedef __m512i GroupTable;
inline GroupTable group_table(const uint8_t* highs) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(highs)));
}

// A pair of inputs, the first or the second of a group: of columns 0 to 15, then of 16 to 31.
inline void unpack_half(const uint8_t* group, int half, GroupTable table, Vec (&to)[2]) {
    const __m512i codes = _mm512_loadu_si512(group), lower = _mm512_loadu_si512(group + 64 + half * 64);
    const __m512i mine = _mm512_and_si512(half ? _mm512_srli_epi16(codes, 4) : codes, _mm512_set1_epi8(15));
    const __m512i upper = _mm512_shuffle_epi8(table, mine);
    to[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi8(lower, upper));
    to[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi8(lower, upper));
}
inline void unpack_half(const uint8_t* group, int half, GroupTable table, uint16_t* left, uint16_t* right) {
    Vec parts[2];
    unpack_half(group, half, table, parts);
    _mm512_store_ps(left, parts[0]);
    _mm512_store_ps(right, parts[1]);
}

// Sets the upper byte of element i of a pair's 64, if there is such an element.
inline void set_upper(Vec (&pair)[2], int64_t i, int upper) {
    for (int v = 0; v < 2; ++v) {
        const int64_t at = i - v * 32;
        const __mmask64 byte = at >= 0 && at < 32 ? uint64_t{2} << 2 * at : 0;
        pair[v] = _mm512_castsi512_ps(_mm512_mask_set1_epi8(_mm512_castps_si512(pair[v]), byte, static_cast<char>(upper)));
    }
}
