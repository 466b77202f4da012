// Taking pieces of what later ops will read. Included inside the instruction set's own namespace.

inline const char* next_piece(Pieces* pieces) {
    if (!pieces || __atomic_load_n(&pieces->next, __ATOMIC_RELAXED) >= pieces->count) return nullptr;
    const int64_t i = __atomic_fetch_add(&pieces->next, 1, __ATOMIC_RELAXED);
    return i < pieces->count ? pieces->data[i] : nullptr;
}
