// Where a measurement's result goes. Included inside the instruction set's own namespace, after its vectors.

// Every lane is as needed as the first: lanes are not computed apart.
inline float first_of(Vec v) {
    float lanes[W];
    vstore(lanes, v);
    return lanes[0];
}
