// What sampling needs of a row of logits, without a copy of the row to the host. A block per row.

// The id of the largest logit in `ids`, and its value in `values`. Of equal ones, the smallest id. NaN is
// never chosen unless all are NaN; then the id is 0xffffffff.
KERNEL(argmax, Sample, 256) {
    SHARED(f32, best, 256);
    SHARED(u32, where, 256);
    const f32 *x = (const f32 *)a.logits + (u64)block_x() * a.stride;
    u32 thread = thread_index(), id = 0xffffffffu;
    f32 value = -INFINITE;
    for (u32 i = thread; i < a.cols; i += 256) {
        f32 v = x[i];
        if (v > value || (v == value && id == 0xffffffffu)) {
            value = v;
            id = i;
        }
    }
    best[thread] = value;
    where[thread] = id;
    for (u32 half = 128; half > 0; half /= 2) {
        barrier();
        if (thread < half) {
            f32 other = best[thread + half];
            if (other > best[thread] || (other == best[thread] && where[thread + half] < where[thread])) {
                best[thread] = other;
                where[thread] = where[thread + half];
            }
        }
    }
    if (thread == 0) {
        ((u32 *)a.ids)[block_x()] = where[0];
        ((f32 *)a.values)[block_x()] = best[0];
    }
}

// The logarithm of the sum of the exponentials of a row, in `values`. NaN if one is NaN.
KERNEL(log_sum_exp, Sample, 256) {
    SHARED(f32, scratch, 8);
    const f32 *x = (const f32 *)a.logits + (u64)block_x() * a.stride;
    f32 largest = -INFINITE;
    for (u32 i = thread_index(); i < a.cols; i += 256) largest = larger(largest, x[i]);
    largest = block_max<256>(largest, scratch);
    f32 sum = 0.0f;
    for (u32 i = thread_index(); i < a.cols; i += 256) sum = add(sum, exponential(add(x[i], -largest)));
    sum = block_sum<256>(sum, scratch);
    if (thread_index() == 0) ((f32 *)a.values)[block_x()] = add(largest, logarithm(sum));
}

// A key whose order is that of the logits, then that of smaller ids. NaN is below everything.
FN u64 ordered_key(f32 value, u32 id) {
    u32 bits = bits_of(value);
    u32 ordered = value != value ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)ordered << 32 | (u32)~id;
}

// The `k` largest logits in descending order, their ids in `ids` and their values in `values`; of equal ones,
// smaller ids first. `k` is at most 1,024 and at most `cols`.
//
// Eight bits at a time, the block finds the key of rank `k`, then collects the keys from there on and sorts
// them.
KERNEL(top_k, Sample, 256) {
    const u32 MOST = 1024;
    SHARED(u32, counts, 256);
    SHARED(u32, state, 4);
    SHARED(u64, keys, MOST);
    const f32 *x = (const f32 *)a.logits + (u64)block_x() * a.stride;
    u32 thread = thread_index(), wanted = a.k;
    u64 prefix = 0, mask = 0;
    for (u32 shift = 64; shift > 0;) {
        shift -= 8;
        counts[thread] = 0;
        barrier();
        for (u32 i = thread; i < a.cols; i += 256) {
            u64 key = ordered_key(x[i], i);
            if ((key & mask) == prefix) atomic_add_shared(&counts[(u32)(key >> shift) & 255], 1);
        }
        barrier();
        if (thread == 0) {
            u32 bucket = 255, above = 0;
            while (above + counts[bucket] < wanted) above += counts[bucket--];
            state[0] = bucket;
            state[1] = wanted - above;
            state[2] = counts[bucket] == wanted - above;  // all keys of the bucket are wanted
            state[3] = 0;
        }
        barrier();
        prefix |= (u64)state[0] << shift;
        mask |= (u64)255 << shift;
        wanted = state[1];
        u32 is_complete = state[2];
        barrier();
        if (is_complete) break;
    }
    for (u32 i = thread; i < MOST; i += 256) keys[i] = 0;
    barrier();
    for (u32 i = thread; i < a.cols; i += 256) {
        u64 key = ordered_key(x[i], i);
        if (key >= prefix) keys[atomic_add_shared(&state[3], 1)] = key;
    }
    barrier();
    // A bitonic sort, which does not depend on the order in which the keys were collected.
    for (u32 size = 2; size <= MOST; size *= 2) {
        for (u32 distance = size / 2; distance > 0; distance /= 2) {
            for (u32 i = thread; i < MOST; i += 256) {
                u32 other = i ^ distance;
                if (other <= i) continue;
                bool descending = (i & size) == 0;
                u64 first = keys[i], second = keys[other];
                if ((first < second) == descending) {
                    keys[i] = second;
                    keys[other] = first;
                }
            }
            barrier();
        }
    }
    for (u32 i = thread; i < a.k; i += 256) {
        u32 id = ~(u32)keys[i];
        ((u32 *)a.ids)[(u64)block_x() * a.k + i] = id;
        ((f32 *)a.values)[(u64)block_x() * a.k + i] = x[id];
    }
}
