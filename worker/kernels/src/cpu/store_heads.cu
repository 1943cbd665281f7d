// From projections to attention: a block of one warp per row and head, first the query heads, then those of keys and
// of values. It adds the bias, normalises and rotates the head, and writes queries to `q`, keys and values to their
// slots in the cache. `Cache` and `cache_row` are those of attention.cu.
KERNEL(store_heads, StoreHeads, 32) {
    SHARED(f32, head, 512);
    u32 index = block_x(), row = block_y(), lane = lane_index();
    bool is_query = index < a.heads, is_key = !is_query && index < a.heads + a.kv_heads;
    const f32 *x = (const f32 *)a.x + (u64)row * a.x_stride + index * a.head_dim;
    u32 kv_head = is_query ? 0 : (index - a.heads) % a.kv_heads;
    u64 biases = is_query ? a.q_bias : is_key ? a.k_bias : a.v_bias;
    const f32 *bias = (const f32 *)biases + (is_query ? index : kv_head) * a.head_dim;
    const f32 *weight = (const f32 *)(is_query ? a.q_norm : is_key ? a.k_norm : 0);
    f32 squares = 0.0f;
    for (u32 d = lane; d < a.head_dim; d += WARP) {
        f32 value = biases ? add(x[d], bias[d]) : x[d];
        squares = fused(value, value, squares);
        head[d] = value;
    }
    if (weight) {
        f32 mean = quotient(warp_sum(squares), (f32)a.head_dim);
        f32 factor = quotient(1.0f, root(add(mean, is_query ? a.q_eps : a.k_eps)));
        for (u32 d = lane; d < a.head_dim; d += WARP) head[d] = mul(mul(head[d], factor), weight[d]);
    }
    barrier();
    if (is_query || is_key) {
        const f32 *cosines = (const f32 *)a.cosines + (u64)row * a.pairs;
        const f32 *sines = (const f32 *)a.sines + (u64)row * a.pairs;
        for (u32 p = lane; p < a.pairs; p += WARP) {
            u32 first = a.adjacent ? 2 * p : p, second = a.adjacent ? 2 * p + 1 : p + a.pairs;
            f32 u = head[first], v = head[second];
            head[first] = add(mul(u, cosines[p]), -mul(v, sines[p]));
            head[second] = add(mul(v, cosines[p]), mul(u, sines[p]));
        }
    }
    barrier();
    if (is_query) {
        f32 *q = (f32 *)a.q + (u64)row * a.q_stride + index * a.head_dim;
        for (u32 d = lane; d < a.head_dim; d += WARP) q[d] = head[d];
    } else {
        const u32 *slot = (const u32 *)a.slots + 2 * (u64)row;
        u64 to = cache_row(slot[0], is_key ? 0 : 1, a.kv_heads, kv_head, slot[1]);
        Cache::store((u8 *)a.cache + to * a.row_bytes, a.row_bytes, head, a.head_dim);
    }
}
