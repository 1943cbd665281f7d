// Rows of a packed matrix as floats: token and position embeddings.

// One block per row. `out[row] = scale * table[ids[row]]`, or added to what is there.
KERNEL(decode_rows, DecodeRows, 128) {
    u32 row = block_x();
    u64 id = ((const u32 *)a.ids)[row];
    f32 *out = (f32 *)a.out + (u64)row * a.out_stride;
    const f32 *plus = (const f32 *)a.plus;
    u32 units = (a.table.cols + 16 * Format::RUNS - 1) / (16 * Format::RUNS);
    for (u32 unit = thread_index(); unit < units; unit += 128) {
        Format::Raw raw = Format::load(a.table, id, unit);
        UNROLL
        for (u32 run = 0; run < Format::RUNS; ++run) {
            f32 w[16];
            Format::decode(raw, run, w);
            u32 first = Format::offset(unit, run);
            for (u32 i = 0; i < 16; ++i) {
                u32 at = first + i;
                if (at >= a.table.cols) continue;
                f32 value = mul(w[i], a.scale);
                if (a.accumulate) value = add(out[at], value);
                if (plus) value = add(value, plus[at]);
                out[at] = value;
            }
        }
    }
}
