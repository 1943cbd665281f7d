// The product of a packed matrix with few columns of activations: `out[column] = x[column] * matrix^T +
// bias`, or added to what is there. The weights are read once, in loads of sixteen bytes, and decoded in
// registers.
//
// A warp computes `ROWS` rows; its lanes take every 32nd unit. With few columns, the bytes of a lane's next
// unit are loaded before the current one is decoded, so that several loads per lane are in flight.
//
// `group` counts groups of `COLUMNS` columns.

template <class Format, u32 ROWS, u32 COLUMNS> FN void dot_rows(const DotRows &a, u32 group) {
    const Matrix &m = a.matrix;
    u32 first_row = (block_x() * 4 + warp_index()) * ROWS;
    if (first_row >= m.rows) return;
    u32 first_column = group * COLUMNS;
    u32 units = (m.cols + 16 * Format::RUNS - 1) / (16 * Format::RUNS);
    // Rows and columns behind the end repeat the last one, and are not stored.
    u64 rows[ROWS];
    UNROLL
    for (u32 r = 0; r < ROWS; ++r) rows[r] = smaller(first_row + r, m.rows - 1);
    const f32 *x[COLUMNS];
    UNROLL
    for (u32 c = 0; c < COLUMNS; ++c) {
        x[c] = (const f32 *)a.x + (u64)smaller(first_column + c, a.columns - 1) * a.x_stride;
    }
    f32 sums[ROWS][COLUMNS];
    UNROLL
    for (u32 r = 0; r < ROWS; ++r) {
        UNROLL
        for (u32 c = 0; c < COLUMNS; ++c) sums[r][c] = 0.0f;
    }

    // With many columns there is enough work per load, and no registers for a second unit.
    const bool AHEAD = COLUMNS <= 2;
    typename Format::Raw next[ROWS];
    if (AHEAD && lane_index() < units) {
        UNROLL
        for (u32 r = 0; r < ROWS; ++r) next[r] = Format::load(m, rows[r], lane_index());
    }
    for (u32 unit = lane_index(); unit < units; unit += WARP) {
        typename Format::Raw raw[ROWS];
        UNROLL
        for (u32 r = 0; r < ROWS; ++r) raw[r] = AHEAD ? next[r] : Format::load(m, rows[r], unit);
        if (AHEAD && unit + WARP < units) {
            UNROLL
            for (u32 r = 0; r < ROWS; ++r) next[r] = Format::load(m, rows[r], unit + WARP);
        }
        UNROLL
        for (u32 run = 0; run < Format::RUNS; ++run) {
            f32 w[ROWS][16];
            UNROLL
            for (u32 r = 0; r < ROWS; ++r) Format::decode(raw[r], run, w[r]);
            u32 first = Format::offset(unit, run);
            UNROLL
            for (u32 c = 0; c < COLUMNS; ++c) {
                f32 v[16];
                load_activations(x[c], first, m.cols, v);
                UNROLL
                for (u32 r = 0; r < ROWS; ++r) {
                    UNROLL
                    for (u32 i = 0; i < 16; ++i) sums[r][c] = fused(w[r][i], v[i], sums[r][c]);
                }
            }
        }
    }

    UNROLL
    for (u32 r = 0; r < ROWS; ++r) {
        UNROLL
        for (u32 c = 0; c < COLUMNS; ++c) {
            f32 sum = warp_sum(sums[r][c]);
            u32 row = first_row + r, column = first_column + c;
            if (lane_index() == 0 && row < m.rows && column < a.columns) {
                f32 *out = (f32 *)a.out + (u64)column * a.out_stride + row;
                if (a.bias) sum = add(sum, ((const f32 *)a.bias)[row]);
                *out = a.accumulate ? add(*out, sum) : sum;
            }
        }
    }
}

KERNEL(dot_rows_1, DotRows, 128) { dot_rows<Format, ROWS, 1>(a, block_y()); }
KERNEL(dot_rows_2, DotRows, 128) { dot_rows<Format, ROWS, 2>(a, block_y()); }
KERNEL(dot_rows_4, DotRows, 128) { dot_rows<Format, 1, 4>(a, block_y()); }
KERNEL(dot_rows_8, DotRows, 128) { dot_rows<Format, 1, 8>(a, block_y()); }

// The product of each slot with the matrix of its expert, which `route` has chosen. Rows with the same expert read its
// weights once each, so it is for few rows.
KERNEL(dot_experts, DotExperts, 128) {
    u32 slot = block_y(), expert = ((const u32 *)a.choices)[slot];
    const ExpertPlanes &planes = ((const ExpertPlanes *)a.experts)[expert];
    DotRows one;
    one.matrix = a.matrix;
    UNROLL
    for (u32 i = 0; i < 5; ++i) one.matrix.planes[i] = planes.planes[i];
    one.matrix.factor = planes.factor;
    one.x = a.x + 4 * (u64)(slot / a.shared) * a.x_stride;
    one.out = a.out + 4 * (u64)slot * a.out_stride;
    one.bias = 0;
    one.x_stride = 0;
    one.out_stride = 0;
    one.columns = 1;
    one.accumulate = 0;
    dot_rows<Format, ROWS, 1>(one, 0);
}
