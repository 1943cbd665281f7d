// `out[i] = exp(scale * x[i] - max) / sum`. A NaN makes the whole row NaN. A block per row.
KERNEL(softmax, RowOp, 256) {
    SHARED(f32, scratch, 8);
    const f32 *x = (const f32 *)a.x + (u64)block_x() * a.x_stride;
    f32 *out = (f32 *)a.out + (u64)block_x() * a.out_stride;
    f32 largest = -INFINITE;
    for (u32 i = thread_index(); i < a.cols; i += 256) largest = larger(largest, mul(a.scale, x[i]));
    largest = block_max<256>(largest, scratch);
    f32 sum = 0.0f;
    for (u32 i = thread_index(); i < a.cols; i += 256) {
        f32 value = exponential(add(mul(a.scale, x[i]), -largest));
        out[i] = value;
        sum = add(sum, value);
    }
    f32 inverse = quotient(1.0f, block_sum<256>(sum, scratch));
    for (u32 i = thread_index(); i < a.cols; i += 256) out[i] = mul(out[i], inverse);
}
