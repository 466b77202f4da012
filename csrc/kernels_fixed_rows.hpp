// Making whole numbers of bf16 weights and of rows; see kernels_fixed.hpp, after which it is included inside the instruction set's own
// namespace.

constexpr int kLeastExponent = kWeightBits, kMostExponent = 250; // of numbers whose scales are floats, whatever is done with them
constexpr int kMostShift = 126;                                  // of columns whose scales are

// call(numbers): a pair of inputs of W columns, for the inputs [k0, k1).
template <class Call>
inline __attribute__((always_inline)) void over_pairs(uint16_t* block, int column, int64_t k0, int64_t k1, const Call& call) {
    uint16_t* first = block + column / 16 * kTileElements + column % 16 * 2;
    for (int64_t k = k0; k < k1; k += 2) call(first + k / kDepthStep * 2 * kTileElements + k % kDepthStep * 16);
}

// Columns' powers of two, which make the roots of their mean squares nearly equal. False where something is not finite, or nearly.
struct ColumnSizes {
    int largest[kColumnBlock] = {}, shifts[kColumnBlock] = {}; // exponents of the largest
    float squares[kColumnBlock];                               // of numbers divided by that power of two

    bool measure(uint16_t* block, int64_t k) {
        int sizes[kColumnBlock], most = 0;
        for (int column = 0; column < kColumnBlock; column += W) {
            uint16_t magnitudes[2 * W];
            IntPairs all = izero();
            over_pairs(block, column, 0, k, [&](const uint16_t* numbers) { all = larger_magnitudes(all, iload(numbers)); });
            istore(magnitudes, all);
            float inverse[W];
            for (int i = 0; i < W; ++i) {
                largest[column + i] = static_cast<int>(max64(magnitudes[2 * i], magnitudes[2 * i + 1]) >> 7);
                if (largest[column + i] > kMostExponent) return false;
                inverse[i] = power_of_two(254 - largest[column + i]);
            }
            Vec sums = vzero();
            over_pairs(block, column, 0, k, [&](const uint16_t* numbers) {
                const Vec first = vmul(vfirst(numbers), vload(inverse)), second = vmul(vsecond(numbers), vload(inverse));
                sums = vfma(second, second, vfma(first, first, sums));
            });
            vstore(squares + column, sums);
        }
        for (int n = 0; n < kColumnBlock; ++n) {
            const float mean = squares[n] / static_cast<float>(k); // below 4
            uint32_t bits;
            __builtin_memcpy(&bits, &mean, sizeof bits);
            sizes[n] = mean > 0 ? largest[n] + (static_cast<int>(bits >> 23) - 127) / 2 : 0;
            most = sizes[n] > most ? sizes[n] : most;
        }
        for (int n = 0; n < kColumnBlock; ++n) {
            if (sizes[n] > 0) shifts[n] = most - sizes[n];
            if (shifts[n] > kMostShift || largest[n] + shifts[n] > kMostExponent) return false;
        }
        return true;
    }
};

// Makes a packed block ready to be multiplied in whole numbers, with the exponents of its groups, the factors of its columns, and what
// the columns lose, as lengths. False: that would be too much, and the block means nothing. Denormal numbers become zeros.
bool fix_block(const FixBlockArgs& a) {
    const int64_t k = round_up(a.k, kDepthStep);
    ColumnSizes sizes;
    if (!sizes.measure(a.block, k)) return false;
    uint16_t more[2 * kColumnBlock];
    for (int i = 0; i < 2 * kColumnBlock; ++i) more[i] = static_cast<uint16_t>(sizes.shifts[i / 2] << 7);
    float lost[kColumnBlock] = {};
    for (int64_t k0 = 0; k0 < k; k0 += kFixedInputs) {
        const int64_t k1 = min64(k, k0 + kFixedInputs);
        IntPairs all = izero();
        for (int column = 0; column < kColumnBlock; column += W) {
            over_pairs(a.block, column, k0, k1, [&](uint16_t* numbers) {
                const IntPairs shifted = shift_exponents(iload(numbers), iload(more + 2 * column));
                istore(numbers, shifted);
                all = larger_magnitudes(all, shifted);
            });
        }
        const int top = static_cast<int>(max64(kLeastExponent, largest_exponent(all)));
        a.exponents[k0 / kFixedInputs] = static_cast<uint8_t>(top);
        // How far off numbers will be, times the last bit of the group, in units of what squares are of.
        const Vec steps = vset(power_of_two(127 + 127 + kWeightBits - 1 - top));
        for (int column = 0; column < kColumnBlock; column += W) {
            float units[W];
            for (int i = 0; i < W; ++i) {
                const int n = column + i, exponent = 127 + top - (kWeightBits - 1) - sizes.shifts[n] - sizes.largest[n];
                units[i] = exponent > 0 && sizes.largest[n] > 0 ? power_of_two(exponent) : 0.0f;
            }
            Vec errors = vload(lost + column);
            over_pairs(a.block, column, k0, k1, [&](const uint16_t* numbers) {
                const Vec both[2] = {vmul(vfirst(numbers), steps), vmul(vsecond(numbers), steps)};
                for (const Vec whole : both) {
                    const Vec error = vmul(vsub(whole, vround(whole)), vload(units));
                    errors = vfma(error, error, errors);
                }
            });
            vstore(lost + column, errors);
        }
    }
    for (int n = 0; n < kColumnBlock; ++n) {
        if (lost[n] > sizes.squares[n] * kMostLost * kMostLost) return false;
        a.scales[n] = power_of_two(127 - sizes.shifts[n]);
        a.errors[n] = __builtin_sqrtf(lost[n]) * power_of_two(sizes.largest[n]) * kLengthTimes + kLengthMore;
    }
    return true;
}

// Rows of bf16 as whole numbers. What is not finite makes all of a group unknown.
void fix_rows(const FixRowsArgs& a, int64_t row0, int64_t row1) {
    const int64_t padded = round_up(a.k, kDepthStep), stride = fixed_row_elements(a.k);
    for (int64_t row = row0; row < row1; ++row) {
        int16_t* to = a.out + row * stride;
        for (int64_t k = 0; k < padded; k += kFixedInputs) {
            const int64_t count = min64(kFixedInputs, a.k - k), width = min64(kFixedInputs, padded - k);
            const uint16_t* from = a.x + row * a.k + k;
            uint16_t part[kFixedInputs];
            if (count < width) {
                __builtin_memset(part, 0, sizeof part);
                __builtin_memcpy(part, from, count * sizeof(uint16_t));
                from = part;
            }
            IntPairs all = izero();
            for (int64_t i = 0; i < width; i += 2 * W) all = larger_magnitudes(all, iload(from + i));
            const int largest = largest_exponent(all), exponent = largest > kInputBits ? largest : kInputBits;
            const Vec inverse = vset(largest > 254 ? 0.0f : power_of_two(127 + 127 + kInputBits - 1 - exponent));
            for (int64_t i = 0; i < width; i += W) vstore_int16(to + k + i, vmul(vload_bf16(from + i), inverse));
            const float scale = largest > 254 ? __builtin_nanf("") : power_of_two(exponent - (kInputBits - 1));
            __builtin_memcpy(to + padded + k / kFixedInputs * 2, &scale, sizeof scale);
        }
    }
}

void add_changes(const FixRowsArgs& a, float times, float* changes, int64_t row0, int64_t row1) {
    const int64_t padded = round_up(a.k, kDepthStep), stride = fixed_row_elements(a.k);
    for (int64_t row = row0; row < row1; ++row) {
        const int16_t* numbers = a.out + row * stride;
        float squares = 0;
        for (int64_t k = 0; k < a.k; k += W) {
            const int64_t count = min64(W, a.k - k);
            float scale, changed[W] = {};
            __builtin_memcpy(&scale, numbers + padded + k / kFixedInputs * 2, sizeof scale);
            for (int64_t i = 0; i < count; ++i) changed[i] = from_bf16(a.x[row * a.k + k + i]) - static_cast<float>(numbers[k + i]) * scale;
            squares += vsum(vmul(vload(changed), vload(changed)));
        }
        changes[row] += (__builtin_sqrtf(squares) * kLengthTimes + kLengthMore) * times;
    }
}

constexpr KernelTable with_fixed(KernelTable table) {
    table = with_compact(table, linear_fixed);
    table.fix_block = fix_block;
    table.fix_rows = fix_rows;
    table.add_changes = add_changes;
    return table;
}
