// `out[i] = exp(scale * x[i] - max) / sum`. A NaN makes the whole row NaN. Computed by a block of 256 threads, each of which
// writes every 256th value.
FN void softmax_row(const f32 *x, f32 *out, u32 cols, f32 scale, f32 *scratch) {
    f32 largest = -INFINITE;
    for (u32 i = thread_index(); i < cols; i += 256) largest = larger(largest, mul(scale, x[i]));
    largest = block_max<256>(largest, scratch);
    f32 sum = 0.0f;
    for (u32 i = thread_index(); i < cols; i += 256) {
        f32 value = exponential(add(mul(scale, x[i]), -largest));
        out[i] = value;
        sum = add(sum, value);
    }
    f32 inverse = quotient(1.0f, block_sum<256>(sum, scratch));
    for (u32 i = thread_index(); i < cols; i += 256) out[i] = mul(out[i], inverse);
}

// A block per row.
KERNEL(softmax, RowOp, 256) {
    SHARED(f32, scratch, 8);
    const f32 *x = (const f32 *)a.x + (u64)block_x() * a.x_stride;
    softmax_row(x, (f32 *)a.out + (u64)block_x() * a.out_stride, a.cols, a.scale, scratch);
}
