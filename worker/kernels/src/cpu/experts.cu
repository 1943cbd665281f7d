// The weighted sum of the experts of each row: `out += weight * outputs[slot]`, one choice after the other,
// the highest weight first. Blocks of 256 columns; the second dimension of the grid is the row.
KERNEL(mix_experts, MixExperts, 256) {
    u32 i = block_x() * 256 + thread_index(), row = block_y();
    if (i >= a.cols) return;
    const u32 *slots = (const u32 *)a.slots + (u64)row * a.used;
    const f32 *weights = (const f32 *)a.weights + (u64)row * a.used;
    f32 *out = (f32 *)a.out + (u64)row * a.out_stride;
    f32 sum = out[i];
    for (u32 k = 0; k < a.used; ++k) {
        f32 value = ((const f32 *)a.outputs)[(u64)slots[k] * a.stride + i];
        sum = add(sum, mul(weights[k], value));
    }
    out[i] = sum;
}
