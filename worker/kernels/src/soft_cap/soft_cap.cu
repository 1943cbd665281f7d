// `out = cap * tanh(scale * x / cap)`. Blocks of 256 columns; the second dimension of the grid is the row.
KERNEL(soft_cap, RowOp, 256) {
    u32 i = block_x() * 256 + thread_index();
    if (i >= a.cols) return;
    f32 x = ((const f32 *)a.x)[(u64)block_y() * a.x_stride + i];
    f32 *out = (f32 *)a.out + (u64)block_y() * a.out_stride;
    out[i] = mul(hyperbolic_tangent(quotient(mul(x, a.scale), a.cap)), a.cap);
}
