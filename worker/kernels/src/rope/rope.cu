// Rotary position embedding, in place. A block per row and head. `other` and `weight` are the cosines and
// sines, `pairs` of them per row.
KERNEL(rotate, RowOp, 64) {
    f32 *head = (f32 *)a.x + (u64)block_x() * a.x_stride + (u64)block_y() * a.head_stride;
    const f32 *cosines = (const f32 *)a.other + (u64)block_x() * a.pairs;
    const f32 *sines = (const f32 *)a.weight + (u64)block_x() * a.pairs;
    for (u32 p = thread_index(); p < a.pairs; p += 64) {
        u32 first = a.adjacent ? 2 * p : p, second = a.adjacent ? 2 * p + 1 : p + a.pairs;
        f32 x = head[first], y = head[second];
        head[first] = add(mul(x, cosines[p]), -mul(y, sines[p]));
        head[second] = add(mul(y, cosines[p]), mul(x, sines[p]));
    }
}
