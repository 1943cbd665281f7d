// GELU in its exact form: `out = x * (1 + erf(x / sqrt(2))) / 2`, where `1 + erf(z)` is `erfc(-z)`. Blocks of
// 256 columns; the second dimension of the grid is the row.
KERNEL(gelu, RowOp, 256) {
    u32 i = block_x() * 256 + thread_index();
    if (i >= a.cols) return;
    f32 x = ((const f32 *)a.x)[(u64)block_y() * a.x_stride + i];
    f32 *out = (f32 *)a.out + (u64)block_y() * a.out_stride;
    out[i] = mul(mul(0.5f, x), complementary_error(mul(x, -0.70710678f)));
}
