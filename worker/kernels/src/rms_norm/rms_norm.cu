// The root-mean-square norm: `out = x / sqrt(mean(x^2) + scale) * weight`, or added to what is there. A block
// per row.
KERNEL(rms_norm, RowOp, 256) {
    SHARED(f32, scratch, 8);
    const f32 *x = (const f32 *)a.x + (u64)block_x() * a.x_stride;
    const f32 *weight = (const f32 *)a.weight;
    f32 *out = (f32 *)a.out + (u64)block_x() * a.out_stride;
    f32 squares = 0.0f;
    for (u32 i = thread_index(); i < a.cols; i += 256) squares = fused(x[i], x[i], squares);
    squares = block_sum<256>(squares, scratch);
    f32 factor = quotient(1.0f, root(add(quotient(squares, (f32)a.cols), a.scale)));
    for (u32 i = thread_index(); i < a.cols; i += 256) {
        f32 value = mul(mul(x[i], factor), weight[i]);
        out[i] = a.accumulate ? add(out[i], value) : value;
    }
}
