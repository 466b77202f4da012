#include <algorithm>
#include <atomic>
#include <cstring>

#include "device_parallel.hpp"

namespace octavo {

// The rows whose results are wanted, ascending: all, or the `count` of `ids`.
struct WantedRows {
    bool all;
    const int32_t* ids;
    int64_t count;

    int32_t operator[](int64_t i) const { return all ? static_cast<int32_t>(i) : ids[i]; }
    // How many of them come before a row.
    int64_t before(int32_t row) const { return all ? row : std::lower_bound(ids, ids + count, row) - ids; }
};

namespace {

constexpr int64_t kHeadsOfUnit = 48;   // query rows x heads that share a tile of K and V
constexpr int64_t kUnitsPerThread = 4; // with fewer, long sequences are cut
constexpr int64_t kComingBytes = int64_t{12} << 20; // of blocks that a last-level cache keeps while a layer is multiplied
constexpr int64_t kPieceBytes = 12 << 10;           // of small blocks that are fetched as one
constexpr int64_t kLeastShare = 1 << 10, kLargestShare = 8 << 10; // of a pass

void check_cache(const KVBlocks& cache, int64_t layer, HeadShape shape) {
    check(layer >= 0 && layer < cache.num_layers, "layer out of range");
    check(shape.num_kv_heads == cache.num_kv_heads && shape.head_dim == cache.head_dim,
          "the KV cache has another number of kv heads or another head_dim");
}

void check_sequences(const AttentionArgs& a, int64_t n, Range rows) {
    const int32_t *start = a.query_start, *lens = a.seq_lens;
    check(start[0] == rows.begin && start[n] == rows.end, "attention: query_start must run from 0 to the number of rows");
    for (int64_t i = 0; i < n; ++i) {
        int64_t length = int64_t{start[i + 1]} - start[i];
        check(length >= 0, "attention: query_start must not decrease");
        check(lens[i] >= length, "attention: a sequence cannot be shorter than its queries");
        check(int64_t{lens[i]} <= a.table_width * a.block_size, "attention: a block table is too short for its sequence");
    }
}

void check_wanted(const WantedRows& wanted, Range rows) {
    if (wanted.all) return;
    check_range("row", wanted.ids, wanted.count, rows.begin, rows.end);
    for (int64_t i = 1; i < wanted.count; ++i) check(wanted[i - 1] < wanted[i], "attention: rows must ascend");
}

// Of rows that follow one another. The last ones of a sequence see most: they are claimed first.
std::vector<AttentionUnit> make_units(const AttentionArgs& a, const WantedRows& wanted, int64_t sequences) {
    const int64_t most = std::max<int64_t>(1, kHeadsOfUnit / (a.num_heads / a.num_kv_heads));
    std::vector<AttentionUnit> units;
    units.reserve(sequences * a.num_kv_heads);
    for (int32_t seq = 0; seq < sequences; ++seq) {
        const int64_t first = wanted.before(a.query_start[seq]);
        for (int64_t end = wanted.before(a.query_start[seq + 1]), begin; end > first; end = begin) {
            begin = end - 1;
            while (begin > first && end - begin < most && wanted[begin - 1] == wanted[begin] - 1) --begin;
            for (int32_t head = 0; head < a.num_kv_heads; ++head) {
                units.push_back({seq, head, wanted[begin], wanted[end - 1] + 1, static_cast<int32_t>(begin), 0, INT32_MAX, nullptr});
            }
        }
    }
    return units;
}

struct Partitions {
    int64_t first, count;
};

// Those that a unit's rows see something of.
Partitions partitions_of(const AttentionArgs& a, const AttentionUnit& u) {
    const int64_t end = a.seq_lens[u.seq] - (a.query_start[u.seq + 1] - u.row1);
    const int64_t begin = a.window ? std::max<int64_t>(0, end - (u.row1 - u.row0 - 1) - a.window) : 0;
    const int64_t first = begin / kPartition;
    return {first, divide_up(end, kPartition) - first};
}

// Those whose keys and values no unit stores, so many at once: of sequences with several, whose units read one another's, and
// those that have no unit.
std::vector<std::pair<int32_t, int32_t>> rows_to_write(const AttentionArgs& a, const WantedRows& wanted, int64_t sequences) {
    constexpr int32_t kRows = 32;
    std::vector<std::pair<int32_t, int32_t>> spans;
    for (int64_t i = 0; i < sequences; ++i) {
        const int32_t end = a.query_start[i + 1];
        if (end - a.query_start[i] == 1 && wanted.before(end) > wanted.before(end - 1)) continue;
        for (int32_t row = a.query_start[i]; row < end; row += kRows) spans.emplace_back(row, std::min(end, row + kRows));
    }
    return spans;
}

// Ends of runs of units, and those of each thread's span of runs. A thread claims a run, within which each unit asks for what the
// next will read. Runs shrink, so that the threads end together.
struct Runs {
    std::vector<int64_t> ends, spans;
};

Runs cut_runs(const AttentionArgs& a, const std::vector<AttentionUnit>& units, int threads) {
    constexpr int64_t kOfUnit = kTokenTile; // what a unit costs at least, in positions
    const auto cost = [&](const AttentionUnit& u) {
        return (kOfUnit + std::min<int64_t>(a.seq_lens[u.seq], int64_t{u.part1 - u.part0} * kPartition)) * (u.row1 - u.row0);
    };
    int64_t left = 0;
    for (const AttentionUnit& unit : units) left += cost(unit);
    Runs runs;
    size_t i = 0;
    for (int thread = 0; thread < threads && i < units.size(); ++thread) {
        const int64_t others = left - left / (threads - thread);
        while (i < units.size() && left > others) {
            const int64_t enough = left - (left - others) / 2;
            do left -= cost(units[i++]);
            while (i < units.size() && left > enough);
            runs.ends.push_back(static_cast<int64_t>(i));
        }
        runs.spans.push_back(static_cast<int64_t>(runs.ends.size()));
    }
    return runs;
}

float* at_cache_line(std::vector<float>& memory, size_t floats) {
    if (memory.size() < floats + 16) memory.resize(floats + 16);
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

} // namespace

// Where there are too few units to occupy the threads, long ones are cut into their partitions, and these merged in order:
// as a unit does it by itself, so that the result is the same.
bool Device::attend(const AttentionArgs& args, const WantedRows& wanted, int64_t sequences) {
    const auto spans = rows_to_write(args, wanted, sequences);
    over_spans(static_cast<int64_t>(spans.size()), [&](int64_t i, int) {
        kernels_->write_kv(args, spans[i].first, spans[i].second);
    });
    std::vector<AttentionUnit> units = make_units(args, wanted, sequences), parts;
    const bool cut = static_cast<int64_t>(units.size()) < kUnitsPerThread * pool_.team() && pool_.team() > 1;
    int64_t rows = 0, state_floats = 0;
    for (const AttentionUnit& unit : units) {
        rows = std::max<int64_t>(rows, unit.row1 - unit.row0);
        const int64_t count = cut ? partitions_of(args, unit).count : 1;
        if (count > 1) state_floats += count * kernels_->attention_state(args, unit.row1 - unit.row0);
    }
    float* state = at_cache_line(partition_states_[pool_.first()], state_floats);
    for (AttentionUnit& unit : units) {
        if (!cut) break;
        const Partitions range = partitions_of(args, unit);
        if (range.count == 1) {
            parts.push_back(unit);
            continue;
        }
        const int64_t floats = kernels_->attention_state(args, unit.row1 - unit.row0);
        unit.state = state;
        for (int64_t i = 0; i < range.count; ++i, state += floats) {
            const auto part = static_cast<int32_t>(range.first + i);
            parts.push_back({unit.seq, unit.kv_head, unit.row0, unit.row1, unit.out_row, part, part + 1, state});
        }
    }
    const std::vector<AttentionUnit>& all = cut ? parts : units;
    const auto floats = static_cast<size_t>(kernels_->attention_scratch(args, rows));
    const auto attention = args.kv_type == KVType::int8 && attention_int8_ ? attention_int8_ : kernels_->attention;
    const Runs runs = cut_runs(args, all, pool_.team());
    Spans runs_of(runs.spans);
    std::atomic<bool> valid{true};
    over_claims(runs_of, 1, [&](const Spans::Claim& claim, int thread) {
        const int64_t i = claim.begin, first = i ? runs.ends[i - 1] : 0;
        if (!attention(args, &all[first], runs.ends[i] - first, at_cache_line(attention_scratch_[thread], floats))) valid = false;
    });
    if (all.size() == units.size() || !valid) return valid;
    over_units(static_cast<int64_t>(units.size()), [&](int64_t i, int) {
        if (units[i].state) kernels_->attention_merge(args, units[i], partitions_of(args, units[i]).count);
    });
    return true;
}

// Products between two layers' attention leave memory idle when there are many rows: they fetch the blocks that the next layer
// will read, as far as a shared cache is likely to keep them, each thread those of its own sequences, in their order. A tile takes
// one piece, whatever its size: small blocks that lie side by side go together. Shared ones go once.
void Device::announce(const AttentionArgs& args, int64_t sequences, const char* next_layer) {
    const int64_t bytes = args.head_bytes * args.num_kv_heads, together = std::max<int64_t>(1, kPieceBytes / bytes);
    const auto first_block = [&](int64_t i) {
        return args.window ? std::max<int64_t>(0, args.seq_lens[i] - args.window) / args.block_size : 0;
    };
    const auto end_block = [&](int64_t i) { return divide_up(args.seq_lens[i], args.block_size); };
    int64_t blocks = 0, before = 0, sequence = 0; // of all sequences; of those before this one
    for (int64_t i = 0; i < sequences; ++i) blocks += end_block(i) - first_block(i);
    std::vector<uint64_t> taken(divide_up(args.num_blocks, 64 * together)); // a bit for each piece
    const int64_t threads = pool_.team(), most = next_layer ? kComingBytes / bytes / pool_.size() : 0;
    for (int64_t thread = 0; thread < threads; ++thread) {
        std::vector<const char*>& own = coming_blocks_[pool_.first() + thread];
        own.clear();
        int64_t left = most;
        for (; sequence < sequences && before < blocks * (thread + 1) / threads; ++sequence) {
            const int32_t* table = args.tables + sequence * args.table_width;
            const int64_t first = first_block(sequence), end = end_block(sequence);
            for (int64_t b = first; left > 0 && b < end; ++b, --left) {
                const auto block = static_cast<uint32_t>(table[b]); // unchecked where a sequence has no rows
                if (block >= static_cast<uint32_t>(args.num_blocks)) continue;
                const uint32_t piece = block / static_cast<uint32_t>(together); // in 32 bits, which is sooner done
                const uint64_t bit = uint64_t{1} << piece % 64;
                if (taken[piece / 64] & bit) continue;
                taken[piece / 64] |= bit;
                own.push_back(next_layer + int64_t{piece} * together * bytes);
            }
            before += end - first;
        }
        Pieces& pieces = coming_[pool_.first() + thread];
        const int64_t count = static_cast<int64_t>(own.size()), piece = bytes * together;
        const int64_t share = divide_up(count * piece, std::max<int64_t>(1, pieces.passes));
        pieces = {own.data(), count, piece, 0, 0, 0, std::clamp(share, kLeastShare, kLargestShare)};
    }
}

nb::object Device::attention(const KVBlocks& cache, int64_t layer, nb::handle qkv, nb::handle slots, nb::handle query_start,
                             nb::handle seq_lens, nb::handle tables, HeadShape shape, float scale, int32_t window,
                             nb::handle wanted) {
    const Array in = heads_of(qkv, shape, false), at = read(slots, "slot_mapping", Type::int32, 1);
    const Array start = read(query_start, "query_start", Type::int32, 1), lens = read(seq_lens, "seq_lens", Type::int32, 1);
    const Array blocks = read(tables, "block_tables", Type::int32, 2);
    check_cache(cache, layer, shape);
    check(window >= 0, "attention: the window must be positive");
    const Size rows = rows_of(in), sequences = rows_of(lens), starts = rows_of(start), width = columns_of(blocks);
    check(rows_of(at).same(rows), "attention: there must be one slot for each row of qkv");
    check(rows_of(blocks).same(sequences), "attention: there must be one row of block_tables for each sequence");
    hold(cache);
    const bool all = wanted.is_none();
    const Array ids = all ? Array{} : read(wanted, "rows", Type::int32, 1);
    const Size results = all ? rows : rows_of(ids);
    const Result out = result(act(), results, int64_t{shape.num_heads} * shape.head_dim, 2);
    const AttentionArgs args{.qkv = in.floats(),
                             .stride = in.shape[1],
                             .slots = at.ints(),
                             .kv = cache.layer(layer),
                             .out = out.data,
                             .query_start = start.ints(),
                             .seq_lens = lens.ints(),
                             .tables = blocks.ints(),
                             .table_width = 0, // known when it runs
                             .num_heads = shape.num_heads,
                             .num_kv_heads = shape.num_kv_heads,
                             .head_dim = shape.head_dim,
                             .block_size = cache.block_size,
                             .num_blocks = static_cast<int32_t>(std::min<int64_t>(cache.num_blocks, INT32_MAX)),
                             .head_bytes = cache.head_bytes(),
                             .window = window,
                             .scale = scale,
                             .kv_type = cache.type,
                             .out_bf16 = act_bf16_,
                             .tuning = tuning_};
    const char* next_layer = layer + 1 < cache.num_layers ? cache.layer(layer + 1) : nullptr;
    issue_in_lanes([this, args, all, ids = ids.ints(), rows, results, sequences, starts, width, next_layer,
                    slots_end = cache.num_blocks * cache.block_size] {
        check(starts.now() == sequences.now() + 1, "attention: query_start must have one value more than seq_lens");
        const Range here = rows.range(), own = sequences.range(), asked = results.range();
        AttentionArgs now = args;
        now.table_width = width.now();
        now.query_start += own.begin;
        now.seq_lens += own.begin;
        now.tables += own.begin * now.table_width;
        if (!all) now.out = static_cast<char*>(args.out) + asked.begin * args.num_heads * args.head_dim * (args.out_bf16 ? 2 : 4);
        check_range("slot", now.slots + here.begin, here.count(), -1, slots_end);
        check_sequences(now, own.count(), here);
        const WantedRows wanted{all, ids + (all ? 0 : asked.begin), asked.count()};
        check_wanted(wanted, here);
        check(attend(now, wanted, own.count()), "block id out of range in block_tables");
        announce(now, own.count(), next_layer);
    });
    return out.array;
}

void Device::copy_blocks(const KVBlocks& cache, nb::handle swap_out, nb::handle swap_in, nb::handle copy) {
    check(!program_, "copy_blocks cannot be recorded");
    struct Move {
        Array pairs;
        const Region *source, *target;
        int64_t sources, targets;
    };
    const int64_t device = cache.num_blocks, host = cache.num_host_blocks;
    const Move moves[3] = {
        {read(swap_out, "swap_out", Type::int32, 2), &cache.device, &cache.host, device, host},
        {read(swap_in, "swap_in", Type::int32, 2), &cache.host, &cache.device, host, device},
        {read(copy, "copy", Type::int32, 2), &cache.device, &cache.device, device, device},
    };
    for (const Move& move : moves) {
        check(move.pairs.shape[1] == 2, "copy_blocks: copies must be pairs");
        for (int64_t i = 0; i < move.pairs.shape[0]; ++i) {
            check_range("source block", move.pairs.ints() + 2 * i, 1, 0, move.sources);
            check_range("target block", move.pairs.ints() + 2 * i + 1, 1, 0, move.targets);
        }
    }
    const int64_t bytes = cache.layer_block_bytes();
    run([&] {
        for (const Move& move : moves) {
            if (move.pairs.shape[0] == 0) continue;
            over_units(cache.num_layers, [&](int64_t layer, int) {
                for (int64_t i = 0; i < move.pairs.shape[0]; ++i) {
                    const int32_t* pair = move.pairs.ints() + 2 * i;
                    std::memmove(move.target->data() + (layer * move.targets + pair[1]) * bytes,
                                 move.source->data() + (layer * move.sources + pair[0]) * bytes, bytes);
                }
            });
        }
    });
}

} // namespace octavo
