// Sixteen activations from `first`; zeros behind the end of the row.
FN void load_activations(const f32 *x, u32 first, u32 cols, f32 *to) {
    if (first + 16 <= cols) {
        UNROLL
        for (u32 i = 0; i < 4; ++i) {
            F4 v = load_f4(x + first + 4 * i);
            to[4 * i] = v.x;
            to[4 * i + 1] = v.y;
            to[4 * i + 2] = v.z;
            to[4 * i + 3] = v.w;
        }
    } else {
        UNROLL
        for (u32 i = 0; i < 16; ++i) to[i] = first + i < cols ? x[first + i] : 0.0f;
    }
}
