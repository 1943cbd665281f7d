// The product of a packed matrix with many columns of activations. A block computes 64 rows for 64 columns.
// Step by step it decodes 64 rows of a unit to shared memory, once for all columns, and multiplies them from
// there; a thread adds up four rows for four columns in registers.
//
// The values of a unit are in the order of the decoder. The activations are read at the same positions.

KERNEL(dot_tiles, DotRows, 256) {
    const u32 TILE = 64, DEPTH = 16;
    SHARED(f32, weights, DEPTH * TILE);
    SHARED(f32, activations, DEPTH * TILE);
    const Matrix &m = a.matrix;
    u32 thread = thread_index();
    u32 first_row = block_x() * TILE, first_column = block_y() * TILE;
    u32 units = (m.cols + 16 * Format::RUNS - 1) / (16 * Format::RUNS);
    u32 own_row = thread % 16, own_column = thread / 16;
    f32 sums[4][4];
    UNROLL
    for (u32 r = 0; r < 4; ++r) {
        UNROLL
        for (u32 c = 0; c < 4; ++c) sums[r][c] = 0.0f;
    }
    // A thread of the first two warps decodes a row; those of the others load activations.
    Format::Raw raw;
    u64 row = smaller(first_row + thread % TILE, m.rows - 1);
    u32 column = smaller(first_column + thread % TILE, a.columns - 1);
    const f32 *x = (const f32 *)a.x + (u64)column * a.x_stride;
    for (u32 unit = 0; unit < units; ++unit) {
        if (thread < TILE) raw = Format::load(m, row, unit);
        UNROLL
        for (u32 run = 0; run < Format::RUNS; ++run) {
            u32 first = Format::offset(unit, run);
            if (thread < TILE) {
                f32 w[16];
                Format::decode(raw, run, w);
                UNROLL
                for (u32 i = 0; i < 16; ++i) weights[i * TILE + thread] = w[i];
            } else if (thread < 2 * TILE) {
                f32 v[16];
                load_activations(x, first, m.cols, v);
                UNROLL
                for (u32 i = 0; i < 16; ++i) activations[i * TILE + thread % TILE] = v[i];
            }
            barrier();
            UNROLL
            for (u32 k = 0; k < DEPTH; ++k) {
                f32 w[4], v[4];
                UNROLL
                for (u32 r = 0; r < 4; ++r) w[r] = weights[k * TILE + own_row + 16 * r];
                UNROLL
                for (u32 c = 0; c < 4; ++c) v[c] = activations[k * TILE + own_column + 16 * c];
                UNROLL
                for (u32 r = 0; r < 4; ++r) {
                    UNROLL
                    for (u32 c = 0; c < 4; ++c) sums[r][c] = fused(w[r], v[c], sums[r][c]);
                }
            }
            barrier();
        }
    }
    UNROLL
    for (u32 c = 0; c < 4; ++c) {
        UNROLL
        for (u32 r = 0; r < 4; ++r) {
            u32 at_row = first_row + own_row + 16 * r, at_column = first_column + own_column + 16 * c;
            if (at_row < m.rows && at_column < a.columns) {
                f32 *out = (f32 *)a.out + (u64)at_column * a.out_stride + at_row;
                f32 sum = sums[r][c];
                if (a.bias) sum = add(sum, ((const f32 *)a.bias)[at_row]);
                *out = a.accumulate ? add(*out, sum) : sum;
            }
        }
    }
}
