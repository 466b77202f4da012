// Taking pieces of what later ops will read. Included inside the instruction set's own namespace.

inline const char* next_piece(Pieces* pieces) {
    return pieces && pieces->next < pieces->count ? pieces->data[pieces->next++] : nullptr;
}
