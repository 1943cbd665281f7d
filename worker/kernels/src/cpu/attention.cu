// Keys and values in pages: their storage, and attention over them. In a layer, the row of head h and slot s
// in page p is row `((2 p + kv) * kv_heads + h) * 32 + s`, where kv is 0 for keys and 1 for values. Rows are
// padded with zeros to whole loads of sixteen bytes.
//
// `Cache` is the format of the rows: `CHUNK` values are in one load, `chunk` decodes a load, `value` one
// value, and `store` writes a row with the 32 lanes of a warp.

FN u64 cache_row(u32 page, u32 kv, u32 kv_heads, u32 head, u32 slot) {
    return (((u64)2 * page + kv) * kv_heads + head) * WARP + slot;
}

struct CacheF32 {
    static const u32 CHUNK = 4;
    METHOD void chunk(const u8 *row, u32, u32 index, f32 *to) {
        U4 q = load16(row + 16 * index);
        UNROLL
        for (u32 i = 0; i < 4; ++i) to[i] = from_bits(word(q, i));
    }
    METHOD f32 value(const u8 *row, u32, u32 d) { return from_bits(load4(row + 4 * d)); }
    METHOD void store(u8 *row, u32 row_bytes, const f32 *from, u32 n) {
        for (u32 d = lane_index(); d < row_bytes / 4; d += WARP) ((f32 *)row)[d] = d < n ? from[d] : 0.0f;
    }
};

struct CacheF16 {
    static const u32 CHUNK = 8;
    METHOD void chunk(const u8 *row, u32, u32 index, f32 *to) {
        U4 q = load16(row + 16 * index);
        UNROLL
        for (u32 i = 0; i < 8; ++i) to[i] = half_to_f32((word(q, i / 2) >> (16 * (i % 2))) & 0xffff);
    }
    METHOD f32 value(const u8 *row, u32, u32 d) { return half_to_f32(load2(row + 2 * d)); }
    METHOD void store(u8 *row, u32 row_bytes, const f32 *from, u32 n) {
        for (u32 d = lane_index(); d < row_bytes / 2; d += WARP) {
            ((u16 *)row)[d] = (u16)f32_to_half(d < n ? from[d] : 0.0f);
        }
    }
};

// Signed bytes, then a half float per 32 of them.
struct CacheQ8_0 {
    static const u32 CHUNK = 16;
    METHOD u32 blocks(u32 head_dim) { return (head_dim + 31) / 32; }
    METHOD void chunk(const u8 *row, u32 head_dim, u32 index, f32 *to) {
        U4 q = load16(row + 16 * index);
        f32 d = half_to_f32(load2(row + 32 * blocks(head_dim) + index / 2 * 2));
        UNROLL
        for (u32 i = 0; i < 16; ++i) to[i] = mul(d, (f32)signed_byte(byte(q, i)));
    }
    METHOD f32 value(const u8 *row, u32 head_dim, u32 d) {
        f32 scale = half_to_f32(load2(row + 32 * blocks(head_dim) + d / 32 * 2));
        return mul(scale, (f32)signed_byte(load1(row + d)));
    }
    METHOD void store(u8 *row, u32 row_bytes, const f32 *from, u32 n) {
        u32 end = 32 * blocks(n), lane = lane_index();
        for (u32 block = 0; block < blocks(n); ++block) {
            f32 x = 32 * block + lane < n ? from[32 * block + lane] : 0.0f;
            f32 d = quotient(warp_max(absolute(x)), 127.0f);
            f32 inverse = d == 0.0f ? 0.0f : quotient(1.0f, d);
            row[32 * block + lane] = (u8)(i32)round_away(mul(x, inverse));
            if (lane == 0) ((u16 *)(row + end))[block] = (u16)f32_to_half(d);
        }
        for (u32 i = end + 2 * blocks(n) + lane; i < row_bytes; i += WARP) row[i] = 0;
    }
};

// The keys that a row sees are processed in sections of `SECTION_PAGES`, which begin at multiples of their length. The
// sections are merged one after the other, always in this order, with the same operations whether one block computes
// all of them or `merge_sections` merges those of several blocks. So the bits of a row depend on its own keys only,
// and not on how the work is distributed.

// The sections of a row's keys.
FN u32 first_section(const u32 *range) { return range[1] / (SECTION_PAGES * WARP); }
FN u32 sections_end(const u32 *range) { return (range[2] - 1) / (SECTION_PAGES * WARP) + 1; }

// A maximum of scores, and the sum of weights relative to it.
struct Softmax { f32 largest, total; };
// The factors for values of `softmax` and of `next` after they are merged.
struct Corrections { f32 before, next; };
FN Corrections merge(Softmax &softmax, const Softmax &next) {
    f32 largest = larger(softmax.largest, next.largest);
    Corrections by = {exponential(add(softmax.largest, -largest)), exponential(add(next.largest, -largest))};
    softmax.total = add(mul(softmax.total, by.before), mul(next.total, by.next));
    softmax.largest = largest;
    return by;
}
FN f32 merge_values(const Corrections &by, f32 before, f32 next) { return fused(next, by.next, mul(before, by.before)); }

// The partial result of a section: `head_dim` weighted values, the maximum and the sum.
FN f32 *partial(const Attend &a, u32 row, u32 head, u32 section) {
    u64 index = ((u64)row * a.heads + head) * a.sections + section;
    return (f32 *)a.partials + index * (a.head_dim + 2);
}

// A block of four warps per query head and row, and with `partials` per section. Each warp takes every fourth page: a
// lane computes the score of one key, then the lanes share the dimensions of the values. Maxima and sums are
// corrected page by page, so nothing depends on the length of the context; the warps' results are combined at the end
// of a section.
template <u32 PARTS> FN void attention(const Attend &a) {
    const u32 WARPS = 4, DIMS = WARP * PARTS;
    SHARED(f32, query, DIMS);
    SHARED(f32, maxima, WARPS);
    SHARED(f32, weights, WARPS);
    SHARED(f32, mixed, WARPS * DIMS);
    u32 head = block_x(), row = block_y(), warp = warp_index(), lane = lane_index();
    const u32 *range = (const u32 *)a.rows + 3 * (u64)row;
    u32 section = first_section(range) + block_z(), end_section = sections_end(range);
    if (a.partials) {
        if (section >= end_section) return;
        end_section = section + 1;
    }
    u32 kv_head = head / (a.heads / a.kv_heads);
    const f32 *q = (const f32 *)a.q + (u64)row * a.q_stride + head * a.head_dim;
    for (u32 d = thread_index(); d < DIMS; d += WARP * WARPS) query[d] = d < a.head_dim ? q[d] : 0.0f;
    barrier();

    const u32 *pages = (const u32 *)a.pages + range[0];
    u32 first = range[1], end = range[2];
    // The result so far; a thread has every 128th value.
    Softmax result = {-INFINITE, 0.0f};
    f32 values[PARTS / WARPS];
    UNROLL
    for (u32 i = 0; i < PARTS / WARPS; ++i) values[i] = 0.0f;
    for (bool is_first = true; section < end_section; ++section, is_first = false) {
        u32 first_page = section * SECTION_PAGES > first / WARP ? section * SECTION_PAGES : first / WARP;
        u32 end_token = smaller(end, (section + 1) * SECTION_PAGES * WARP);
        f32 largest = -INFINITE, total = 0.0f, sums[PARTS];
        UNROLL
        for (u32 i = 0; i < PARTS; ++i) sums[i] = 0.0f;
        for (u32 page = first_page + warp; page * WARP < end_token; page += WARPS) {
            u32 token = page * WARP + lane;
            bool visible = token >= first && token < end;
            f32 score = -INFINITE;
            if (visible) {
                const u8 *key =
                    (const u8 *)a.cache + cache_row(pages[page], 0, a.kv_heads, kv_head, lane) * a.row_bytes;
                score = 0.0f;
                for (u32 chunk = 0; chunk * Cache::CHUNK < a.head_dim; ++chunk) {
                    f32 k[Cache::CHUNK];
                    Cache::chunk(key, a.head_dim, chunk, k);
                    UNROLL
                    for (u32 i = 0; i < Cache::CHUNK; ++i) {
                        score = fused(k[i], query[chunk * Cache::CHUNK + i], score);
                    }
                }
                score = mul(score, a.scale);
                if (a.cap != 0.0f) score = mul(hyperbolic_tangent(quotient(score, a.cap)), a.cap);
            }
            // Every page has a visible key, so the maximum is a score.
            f32 next = larger(largest, warp_max(score));
            f32 correction = exponential(add(largest, -next));
            f32 weight = visible ? exponential(add(score, -next)) : 0.0f;
            total = add(mul(total, correction), warp_sum(weight));
            largest = next;
            UNROLL
            for (u32 i = 0; i < PARTS; ++i) sums[i] = mul(sums[i], correction);
            u32 from = page * WARP < first ? first - page * WARP : 0, to = smaller(WARP, end - page * WARP);
            const u8 *value =
                (const u8 *)a.cache + cache_row(pages[page], 1, a.kv_heads, kv_head, 0) * a.row_bytes;
            for (u32 t = from; t < to; ++t) {
                f32 w = from_bits(shuffle(ALL_LANES, bits_of(weight), t));
                UNROLL
                for (u32 i = 0; i < PARTS; ++i) {
                    u32 d = WARP * i + lane;
                    if (d < a.head_dim) {
                        sums[i] = fused(w, Cache::value(value + (u64)t * a.row_bytes, a.head_dim, d), sums[i]);
                    }
                }
            }
        }

        if (lane == 0) {
            maxima[warp] = largest;
            weights[warp] = total;
        }
        UNROLL
        for (u32 i = 0; i < PARTS; ++i) mixed[warp * DIMS + WARP * i + lane] = sums[i];
        barrier();
        Softmax of_section = {maxima[0], 0.0f};
        for (u32 w = 1; w < WARPS; ++w) of_section.largest = larger(of_section.largest, maxima[w]);
        f32 factors[WARPS];
        UNROLL
        for (u32 w = 0; w < WARPS; ++w) {
            // A warp without pages has no maximum.
            factors[w] = weights[w] != 0.0f ? exponential(add(maxima[w], -of_section.largest)) : 0.0f;
            of_section.total = add(of_section.total, mul(weights[w], factors[w]));
        }
        Corrections by = {0.0f, 1.0f};
        if (is_first) result = of_section;
        else by = merge(result, of_section);
        UNROLL
        for (u32 i = 0; i < PARTS / WARPS; ++i) {
            f32 value = 0.0f;
            UNROLL
            for (u32 w = 0; w < WARPS; ++w) {
                value = fused(mixed[w * DIMS + i * WARP * WARPS + thread_index()], factors[w], value);
            }
            values[i] = is_first ? value : merge_values(by, values[i], value);
        }
        barrier();
    }

    f32 *out = (f32 *)a.out + (u64)row * a.out_stride + head * a.head_dim;
    if (a.partials) out = partial(a, row, head, block_z());
    UNROLL
    for (u32 i = 0; i < PARTS / WARPS; ++i) {
        u32 d = i * WARP * WARPS + thread_index();
        if (d < a.head_dim) out[d] = a.partials ? values[i] : quotient(values[i], result.total);
    }
    if (a.partials && thread_index() == 0) {
        out[a.head_dim] = result.largest;
        out[a.head_dim + 1] = result.total;
    }
}

KERNEL(attention_128, Attend, 128) { attention<4>(a); }
KERNEL_OF_BLOCKS(attention_256, Attend, 128, 4) { attention<8>(a); }
KERNEL_OF_BLOCKS(attention_512, Attend, 128, 2) { attention<16>(a); }

// Merges the sections of each query head and row: a block for each.
KERNEL(merge_sections, Attend, 128) {
    u32 head = block_x(), row = block_y();
    const u32 *range = (const u32 *)a.rows + 3 * (u64)row;
    u32 sections = sections_end(range) - first_section(range);
    f32 *out = (f32 *)a.out + (u64)row * a.out_stride + head * a.head_dim;
    for (u32 d = thread_index(); d < a.head_dim; d += 128) {
        const f32 *from = partial(a, row, head, 0);
        Softmax result = {from[a.head_dim], from[a.head_dim + 1]};
        f32 value = from[d];
        for (u32 section = 1; section < sections; ++section) {
            from = partial(a, row, head, section);
            Corrections by = merge(result, {from[a.head_dim], from[a.head_dim + 1]});
            value = merge_values(by, value, from[d]);
        }
        out[d] = quotient(value, result.total);
    }
}
