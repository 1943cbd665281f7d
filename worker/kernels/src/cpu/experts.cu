// Chooses the experts of each row: the softmax of the router's scores, then the `used` experts with the highest weights in
// descending order, of equal ones the first. A block per row.
KERNEL(route, Route, 256) {
    SHARED(f32, scratch, 8);
    SHARED(u64, best, 256);
    u32 thread = thread_index();
    f32 *scores = (f32 *)a.scores + (u64)block_x() * a.stride;
    softmax_row(scores, scores, a.count, 1.0f, scratch);
    u32 first = block_x() * a.used;
    u32 *choices = (u32 *)a.choices + first, *slots = (u32 *)a.slots + first;
    f32 *weights = (f32 *)a.weights + first;
    // Keys have the order of the choices. Weights are not negative, so the order of their bits is theirs; NaN is below.
    u64 last = ~0ull;
    f32 sum = 0.0f;
    for (u32 k = 0; k < a.used; ++k) {
        u64 key = 0;
        // A thread reads the scores that it has written.
        for (u32 i = thread; i < a.count; i += 256) {
            f32 weight = scores[i];
            u64 other = (u64)(weight == weight ? bits_of(weight) : 0) << 32 | (u32)~i;
            if (other < last && other > key) key = other;
        }
        best[thread] = key;
        for (u32 half = 128; half > 0; half /= 2) {
            barrier();
            if (thread < half && best[thread + half] > best[thread]) best[thread] = best[thread + half];
        }
        barrier();
        last = best[0];
        barrier();
        if (thread == 0) {
            u32 expert = ~(u32)last;
            choices[k] = expert;
            slots[k] = first + k;
            weights[k] = scores[expert];
            sum = add(sum, scores[expert]);
        }
    }
    if (thread == 0 && a.renormalise) {
        for (u32 k = 0; k < a.used; ++k) weights[k] = quotient(weights[k], sum);
    }
}

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
