// The product of a packed matrix with many columns of activations on tensor cores: both are rounded to BF16, the
// sums are f32. A block computes `TILE` rows for `TILE` columns.
//
// The weights are decoded into shared memory, by the decoders of all other kernels; nothing decoded is written to
// global memory. A thread decodes one run of sixteen values of one row at a time, and converts the activations of
// one column at the same positions. `UNITS` threads process neighbouring units of a row, so that a warp reads
// whole sectors. A run is the depth of one `mma`, in the order of the decoder, which need not be that of the row.
//
// Shared memory has two buffers, so that there is one barrier per step: while one is multiplied, the other is
// filled. The bytes of the next unit and the next activations are loaded to registers before the current ones are
// multiplied. Copies that bypass registers (`cp.async`) would not help, because both are converted on their way.
// Weights and activations are stored in chunks of sixteen bytes whose place is permuted (`place`): eight threads
// that store, and eight rows that `ldmatrix` reads, are in different banks. The weights are the operand with sixteen
// rows and the activations that with eight columns; a warp without rows or columns of its own only loads.
//
// Sizes. A warp of the large tile multiplies 64 rows by 32 columns: six `ldmatrix` for sixteen `mma`, about what
// shared memory delivers at the rate of `mma` on an A100 or H100. It reads the activations, as f32, once per 128
// rows, and decodes each weight once per 128 columns. With 64 sums, sixteen activations and a unit, most formats
// take 128 registers, so that two blocks of 256 threads and 32 KiB share a multiprocessor, and one decodes while the
// other multiplies; BF16, Q4_K, Q5_K and Q6_K take up to 182, for one block. The small tile is for batches, where
// the bytes of the weights count: more blocks, and per row four units that are multiplied and four more in flight.
// With most formats it takes 72 to 102 registers, for five blocks or more, with Q4_K and Q6_K about 155, for three.
// CUTLASS and llama.cpp's products have large tiles of this size. None of this has been measured on a GPU.

// The place of a chunk of sixteen bytes in a tile whose rows have `CHUNKS`, four or eight.
template <u32 CHUNKS> FN u32 place(u32 row, u32 chunk) {
    return row * CHUNKS + (chunk ^ (row * CHUNKS / 8 % CHUNKS));
}

// Writes sixteen values as BF16.
template <u32 CHUNKS> FN void store_run(U4 *tile, u32 row, u32 unit, const f32 *values) {
    UNROLL
    for (u32 i = 0; i < 2; ++i) {
        const f32 *v = values + 8 * i;
        tile[place<CHUNKS>(row, 2 * unit + i)] = {f32_to_bf16x2(v[0], v[1]), f32_to_bf16x2(v[2], v[3]),
                                                  f32_to_bf16x2(v[4], v[5]), f32_to_bf16x2(v[6], v[7])};
    }
}

template <u32 TILE, u32 UNITS, u32 WARPS_DOWN, u32 WARPS_ACROSS> FN void dot_tensor_tiles(const DotRows &a) {
    const u32 CHUNKS = 2 * UNITS, DOWN = TILE / WARPS_DOWN / 16, ACROSS = TILE / WARPS_ACROSS / 16;
    static_assert(TILE * UNITS == WARPS_DOWN * WARPS_ACROSS * WARP, "a thread has one unit of a row");
    SHARED(U4, weights, 2 * TILE * CHUNKS);
    SHARED(U4, activations, 2 * TILE * CHUNKS);
    const Matrix &m = a.matrix;
    u32 own = thread_index() / UNITS, part = thread_index() % UNITS, lane = lane_index();
    u32 first_row = block_y() * TILE, first_column = block_x() * TILE;
    u32 down = warp_index() % WARPS_DOWN * (16 * DOWN), across = warp_index() / WARPS_DOWN * (16 * ACROSS);
    bool is_idle = first_row + down >= m.rows || first_column + across >= a.columns;
    u32 units = (m.cols + 16 * Format::RUNS - 1) / (16 * Format::RUNS);
    // Rows and columns behind the end repeat the last one, and are not stored.
    u64 row = smaller(first_row + own, m.rows - 1);
    const f32 *x = (const f32 *)a.x + (u64)smaller(first_column + own, a.columns - 1) * a.x_stride;

    f32 sums[DOWN][2 * ACROSS][4];
    UNROLL
    for (u32 d = 0; d < DOWN; ++d) {
        UNROLL
        for (u32 c = 0; c < 2 * ACROSS; ++c) {
            UNROLL
            for (u32 i = 0; i < 4; ++i) sums[d][c][i] = 0.0f;
        }
    }

    typename Format::Raw next;
    f32 v[16];
    if (part < units) next = Format::load(m, row, part);
    load_activations(x, Format::offset(part, 0), m.cols, v);
    u32 buffer = 0;
    for (u32 first = 0; first < units; first += UNITS) {
        u32 unit = first + part;
        typename Format::Raw raw = next;
        UNROLL
        for (u32 run = 0; run < Format::RUNS; ++run) {
            // In this order, few values are in registers at a time.
            store_run<CHUNKS>(activations + buffer, own, part, v);
            f32 w[16];
            UNROLL
            for (u32 i = 0; i < 16; ++i) w[i] = 0.0f;
            // Behind the end of a row, both sides are zero.
            if (unit < units) Format::decode(raw, run, w);
            store_run<CHUNKS>(weights + buffer, own, part, w);
            bool is_last = run + 1 == Format::RUNS;
            load_activations(x, is_last ? Format::offset(unit + UNITS, 0) : Format::offset(unit, run + 1), m.cols, v);
            if (is_last && unit + UNITS < units) next = Format::load(m, row, unit + UNITS);
            barrier();
            if (!is_idle) {
                UNROLL
                for (u32 u = 0; u < UNITS; ++u) {
                    u32 left[4], right[ACROSS][4];
                    UNROLL
                    for (u32 c = 0; c < ACROSS; ++c) {
                        u32 at = place<CHUNKS>(across + 16 * c + lane / 16 * 8 + lane % 8, 2 * u + lane / 8 % 2);
                        load_matrices(right[c], activations + buffer + at);
                    }
                    UNROLL
                    for (u32 d = 0; d < DOWN; ++d) {
                        u32 at = place<CHUNKS>(down + 16 * d + lane % 16, 2 * u + lane / 16);
                        load_matrices(left, weights + buffer + at);
                        UNROLL
                        for (u32 c = 0; c < 2 * ACROSS; ++c) {
                            multiply_tiles(sums[d][c], left, right[c / 2] + 2 * (c % 2));
                        }
                    }
                }
            }
            buffer ^= TILE * CHUNKS;
        }
    }

    UNROLL
    for (u32 d = 0; d < DOWN; ++d) {
        UNROLL
        for (u32 c = 0; c < 2 * ACROSS; ++c) {
            UNROLL
            for (u32 i = 0; i < 4; ++i) {
                u32 at_row = first_row + down + 16 * d + lane / 4 + 8 * (i / 2);
                u32 at_column = first_column + across + 8 * c + 2 * (lane % 4) + i % 2;
                if (at_row >= m.rows || at_column >= a.columns) continue;
                f32 *out = (f32 *)a.out + (u64)at_column * a.out_stride + at_row;
                f32 sum = sums[d][c][i];
                if (a.bias) sum = add(sum, ((const f32 *)a.bias)[at_row]);
                *out = a.accumulate ? add(*out, sum) : sum;
            }
        }
    }
}

KERNEL_OF_BLOCKS(dot_tensor_tiles_32, DotRows, 128, 3) { dot_tensor_tiles<32, 4, 2, 2>(a); }
KERNEL(dot_tensor_tiles_128, DotRows, 256) { dot_tensor_tiles<128, 2, 2, 4>(a); }
