// `out = gelu(x) * other` with the tanh form of GELU, where `0.5 * (1 + tanh(u))` is `1 / (1 + exp(-2 u))`.
// Blocks of 256 columns; the second dimension of the grid is the row.
KERNEL(geglu, RowOp, 256) {
    const f32 two_root = 1.595769f;  // the square root of 2 / pi, doubled
    const f32 cubic = 0.044715f;
    u32 i = block_x() * 256 + thread_index();
    if (i >= a.cols) return;
    f32 gate = ((const f32 *)a.x)[(u64)block_y() * a.x_stride + i];
    f32 up = ((const f32 *)a.other)[(u64)block_y() * a.other_stride + i];
    f32 *out = (f32 *)a.out + (u64)block_y() * a.out_stride;
    f32 inner = mul(two_root, add(gate, mul(mul(mul(cubic, gate), gate), gate)));
    out[i] = mul(quotient(gate, add(1.0f, exponential(-inner))), up);
}
