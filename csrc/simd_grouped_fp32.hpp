// Weights in groups as numbers for products in fp32. Included inside the instruction set's own namespace, after a header that
// defines dbyte, dfar_above and vstore_pairs.

// Pairs of inputs, one for each of W columns: bf16 numbers in fp32.
struct Pairs {
    Vec even, odd;
};
inline void store_pairs(uint16_t* p, const Pairs& pairs) { vstore_pairs(p, pairs.even, pairs.odd); }

typedef Bytes Words;
inline Words spread(Bytes words) { return words; }

template <int kBits> struct GroupScales {
    // Products are exact: what is rounded is the sum, and then the number.
    GroupScales() = default;
    explicit GroupScales(const char* p)
        : scale(vload_half(p)), minimum(kBits < 6 ? vload_half(p + kIntegerColumns * 2) : vmul(scale, vset(-kOffset<kBits>))) {}
    Vec scale, minimum;
};

// Byte I of each word as the number that it stands for, rounded to bf16: nearest, ties to even. What is added and subtracted
// again leaves its last bit where bf16 has its own.
template <int I, class Scales> inline Vec number_of(Bytes b, const Scales& scales) {
    const Vec number = vfma(dbyte<I>(b), scales.scale, scales.minimum), far = dfar_above(number);
    return vsub(vadd(number, far), far);
}

// The numbers of four inputs: with 4 bits those in the low or in the high halves of the words' bytes, else of whole bytes.
template <int kBits, bool kHigh> inline void unpack(Words words, const GroupScales<kBits>& scales, Pairs (&to)[2]) {
    const Bytes b = kBits != 4 ? words : kHigh ? dhigh(words) : dlow(words);
    to[0] = {number_of<0>(b, scales), number_of<1>(b, scales)};
    to[1] = {number_of<2>(b, scales), number_of<3>(b, scales)};
}
