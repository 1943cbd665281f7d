// `out = x / (1 + exp(-x)) * other`. Blocks of 256 columns; the second dimension of the grid is the row.
KERNEL(swiglu, RowOp, 256) {
    u32 i = block_x() * 256 + thread_index();
    if (i >= a.cols) return;
    f32 gate = ((const f32 *)a.x)[(u64)block_y() * a.x_stride + i];
    f32 up = ((const f32 *)a.other)[(u64)block_y() * a.other_stride + i];
    f32 *out = (f32 *)a.out + (u64)block_y() * a.out_stride;
    out[i] = mul(quotient(gate, add(1.0f, exponential(-gate))), up);
}
