//! Products with many columns: rows are decoded first, several at a time, and multiplied with a few columns at a time.
//!
//! Long rows are multiplied block by block, so that the values of the columns stay in the L1 cache, and those of the
//! rows in the L2 cache. The partial sums of a product are kept between blocks; the order of additions is the same.

use super::super::rows::Rows;

/// Maximum number of values of a row that is one block.
const LONG_ROW: usize = 2048;
/// Maximum number of values of a block of a longer row.
const BLOCK: usize = 1024;
/// Columns whose partial sums are kept at a time, so that they stay in the L2 cache.
const COLUMNS: usize = 64;
/// Maximum size in bytes of the rows that are decoded at a time, unless one tile needs more.
pub(super) const DECODED_BYTES: usize = 1 << 22;
/// Maximum number of products of a tile.
const MAX_TILE: usize = 24;
/// Values in a cache line.
const LINE: usize = 64 / size_of::<f32>();

/// A block of some decoded rows and columns that are multiplied together.
pub(super) struct Tile<'a> {
    /// Row r has its values from `r * w_stride`.
    pub(super) w: &'a [f32],
    pub(super) w_stride: usize,
    /// Column c has its values from `c * x_stride`.
    pub(super) x: &'a [f32],
    pub(super) x_stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Values of this block in each row, a multiple of sixteen unless it is the last block.
    pub(super) values: usize,
    /// Whether the sums begin with this block.
    pub(super) is_first: bool,
    /// Whether the products are complete after this block.
    pub(super) is_last: bool,
    /// Where the products go: the row for the first column, and the column for the first row.
    pub(super) to: (usize, usize),
}

impl<'a> Tile<'a> {
    /// One of the rows.
    pub(super) fn row(&self, row: usize) -> Self {
        let (j, i) = self.to;
        Self { w: &self.w[row * self.w_stride..], rows: 1, to: (j, i + row), ..*self }
    }

    /// One of the columns.
    pub(super) fn column(&self, column: usize) -> Self {
        let (j, i) = self.to;
        Self { x: &self.x[column * self.x_stride..], columns: 1, to: (j + column, i), ..*self }
    }

    /// Whether the rows and columns have all values.
    pub(super) fn is_whole(&self) -> bool {
        self.w.len() >= (self.rows - 1) * self.w_stride + self.values
            && self.x.len() >= (self.columns - 1) * self.x_stride + self.values
    }
}

/// Decodes all rows and multiplies them with all columns, up to `tile_rows` rows with up to `tile_columns` columns at a
/// time.
///
/// `decode(rows, i, to)` decodes a row. `multiply(tile, sums)` multiplies a tile, with space for the partial sums of each
/// product of rows and columns.
pub(super) fn by_tiles<V: Copy>(
    rows: &Rows<'_>,
    x: &[f32],
    scratch: &mut Vec<f32>,
    (tile_rows, tile_columns): (usize, usize),
    zero: V,
    decode: impl Fn(&Rows<'_>, usize, &mut [f32]),
    mut multiply: impl FnMut(&Tile<'_>, &mut [V]),
) {
    let (n, cols) = (rows.len(), rows.cols());
    let is_one_block = cols <= LONG_ROW;
    let block = if is_one_block { cols } else { cols.div_ceil(cols.div_ceil(BLOCK)).next_multiple_of(LINE) };
    // Decoding more rows than a tile has no advantage with few columns.
    let is_one_tile = x.len() <= tile_columns * cols;
    // The partial sums of more than one block need as much space as the rows.
    let panel_bytes = if is_one_block { 4 * block } else { 8 * block };
    // Rows begin with a cache line, and not at the same place of the cache.
    let stride = cols.next_multiple_of(LINE) + LINE;
    let largest = DECODED_BYTES / (stride * size_of::<f32>()) / tile_rows * tile_rows;
    let panel = if is_one_tile { 0 } else { super::panel_rows(panel_bytes, tile_rows).min(largest) };
    let panel = panel.max(tile_rows);
    let columns_at_once = if is_one_block { (x.len() / cols).max(1) } else { COLUMNS };
    let tile_len = tile_rows * tile_columns;
    let (mut one, mut many) = ([zero; MAX_TILE], Vec::new());
    let sums = if is_one_block {
        &mut one[..tile_len]
    } else {
        many.resize(panel / tile_rows * COLUMNS.div_ceil(tile_columns) * tile_len, zero);
        &mut many[..]
    };
    for first in (0..n).step_by(panel) {
        let some = rows.range(first, panel.min(n - first));
        let decoded = aligned(scratch, some.len() * stride);
        for (i, to) in decoded.chunks_exact_mut(stride).enumerate() {
            decode(&some, i, &mut to[..cols]);
        }
        for (g, x) in x.chunks(columns_at_once * cols).enumerate() {
            for k in (0..cols).step_by(block) {
                let mut tile = 0;
                for (j, x) in x.chunks(tile_columns * cols).enumerate() {
                    for (i, w) in decoded.chunks(tile_rows * stride).enumerate() {
                        let part = Tile {
                            w: &w[k..],
                            w_stride: stride,
                            x: &x[k..],
                            x_stride: cols,
                            rows: w.len() / stride,
                            columns: x.len() / cols,
                            values: block.min(cols - k),
                            is_first: k == 0,
                            is_last: k + block >= cols,
                            to: (g * columns_at_once + j * tile_columns, first + i * tile_rows),
                        };
                        multiply(&part, &mut sums[tile * tile_len..(tile + 1) * tile_len]);
                        tile += usize::from(!is_one_block);
                    }
                }
            }
        }
    }
}

/// The first `n` values of `scratch` from the beginning of a cache line on.
fn aligned(scratch: &mut Vec<f32>, n: usize) -> &mut [f32] {
    if scratch.len() < n + LINE {
        scratch.resize(n + LINE, 0.0);
    }
    let skipped = scratch.as_ptr().align_offset(64);
    &mut scratch[skipped..skipped + n]
}
