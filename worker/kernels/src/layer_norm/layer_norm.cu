// The layer norm: `out = (x - mean(x)) / sqrt(var(x) + scale) * weight + bias`. A block per row.
KERNEL(layer_norm, RowOp, 256) {
    SHARED(f32, scratch, 8);
    const f32 *x = (const f32 *)a.x + (u64)block_x() * a.x_stride;
    const f32 *weight = (const f32 *)a.weight, *bias = (const f32 *)a.bias;
    f32 *out = (f32 *)a.out + (u64)block_x() * a.out_stride;
    f32 sum = 0.0f;
    for (u32 i = thread_index(); i < a.cols; i += 256) sum = add(sum, x[i]);
    f32 mean = quotient(block_sum<256>(sum, scratch), (f32)a.cols);
    f32 squares = 0.0f;
    for (u32 i = thread_index(); i < a.cols; i += 256) {
        f32 d = add(x[i], -mean);
        squares = fused(d, d, squares);
    }
    squares = block_sum<256>(squares, scratch);
    f32 factor = quotient(1.0f, root(add(quotient(squares, (f32)a.cols), a.scale)));
    for (u32 i = thread_index(); i < a.cols; i += 256) {
        out[i] = add(mul(mul(add(x[i], -mean), factor), weight[i]), bias[i]);
    }
}
