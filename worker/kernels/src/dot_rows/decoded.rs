//! Products with many columns: rows are decoded first, several at a time, and multiplied with a few columns at a time.
//!
//! Long rows are multiplied block by block, so that the values of the columns stay in the L1 cache, and those of the
//! rows in the L2 cache. The partial sums of a product are kept between blocks; the order of additions is the same.

use super::super::rows::Rows;

/// Columns whose partial sums are kept at a time, so that they stay in the L2 cache; a multiple of a tile's columns.
const COLUMNS: usize = 72;
/// Columns of a multiple of these values begin at the same place of the caches, which then have space for few of them.
const ALIASED: usize = 1024;
/// Maximum number of rows that are decoded at a time.
const ROWS: usize = 64;
/// Maximum size in bytes of the rows that are decoded at a time, unless one tile needs more.
pub(super) const DECODED_BYTES: usize = 1 << 22;
/// Maximum size in bytes of the partial sums that are kept, of sixteen floats each.
#[cfg(test)]
pub(super) const SUMS_BYTES: usize = ROWS * COLUMNS * 64;
/// Values in a cache line.
const LINE: usize = 64 / size_of::<f32>();

/// How an instruction set multiplies.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Rows of a tile.
    pub(super) rows: usize,
    /// Columns of a tile.
    pub(super) columns: usize,
    /// Partial sums of a product.
    pub(super) lanes: usize,
    /// Maximum number of values of a block.
    pub(super) block: usize,
}

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

/// Decodes all rows and multiplies them with all columns, a tile at a time.
///
/// `decode(rows, i, to)` decodes a row. `multiply(tile, sums)` multiplies a tile, with space for the partial sums of each
/// product of rows and columns.
pub(super) fn by_tiles(
    rows: &Rows<'_>,
    x: &[f32],
    scratch: &mut Vec<f32>,
    shape: Shape,
    decode: impl Fn(&Rows<'_>, usize, &mut [f32]),
    mut multiply: impl FnMut(&Tile<'_>, &mut [f32]),
) {
    let (n, cols) = (rows.len(), rows.cols());
    let (tile_rows, tile_columns) = (shape.rows, shape.columns);
    let block = cols.div_ceil(cols.div_ceil(shape.block)).next_multiple_of(LINE);
    // Decoding more rows than a tile has no advantage with few columns.
    let is_one_tile = x.len() <= tile_columns * cols;
    // Rows begin with a cache line, and not at the same place of the cache.
    let stride = cols.next_multiple_of(LINE) + LINE;
    let largest = DECODED_BYTES / (stride * size_of::<f32>());
    let most = if is_one_tile { 0 } else { ROWS.min(largest) / tile_rows };
    let panel = most.max(1) * tile_rows;
    let columns_at_once = COLUMNS.min((x.len() / cols).max(1));
    let tile_len = tile_rows * tile_columns * shape.lanes;
    let tiles_len = panel / tile_rows * tile_len;
    let packed_stride = if cols.is_multiple_of(ALIASED) { block + LINE } else { 0 };
    let [decoded, packed, sums] = aligned(
        scratch,
        [panel * stride, columns_at_once * packed_stride, columns_at_once.div_ceil(tile_columns) * tiles_len],
    );
    for first in (0..n).step_by(panel) {
        let some = rows.range(first, panel.min(n - first));
        let decoded = &mut decoded[..some.len() * stride];
        for (i, to) in decoded.chunks_exact_mut(stride).enumerate() {
            decode(&some, i, &mut to[..cols]);
        }
        for (g, x) in x.chunks(columns_at_once * cols).enumerate() {
            let columns = x.len() / cols;
            for k in (0..cols).step_by(block) {
                let values = block.min(cols - k);
                let (x, x_stride) = match packed_stride {
                    0 => (&x[k..], cols),
                    stride => {
                        for (x, to) in x.chunks(cols).zip(packed.chunks_mut(stride)) {
                            to[..values].copy_from_slice(&x[k..k + values]);
                        }
                        (&*packed, stride)
                    }
                };
                let tiles = (0..columns).step_by(tile_columns).zip(sums.chunks_exact_mut(tiles_len));
                for (j, sums) in tiles {
                    let tiles = decoded.chunks(tile_rows * stride).zip(sums.chunks_exact_mut(tile_len));
                    for (i, (w, sums)) in tiles.enumerate() {
                        let part = Tile {
                            w: &w[k..],
                            w_stride: stride,
                            x: &x[j * x_stride..],
                            x_stride,
                            rows: w.len() / stride,
                            columns: tile_columns.min(columns - j),
                            values,
                            is_first: k == 0,
                            is_last: k + block >= cols,
                            to: (g * columns_at_once + j, first + i * tile_rows),
                        };
                        multiply(&part, sums);
                    }
                }
            }
        }
    }
}

/// The first values of `scratch` in parts that begin with a cache line, whose lengths are multiples of [`LINE`].
fn aligned(scratch: &mut Vec<f32>, lengths: [usize; 3]) -> [&mut [f32]; 3] {
    let all: usize = lengths.iter().sum();
    if scratch.len() < all + LINE {
        scratch.resize(all + LINE, 0.0);
    }
    let skipped = scratch.as_ptr().align_offset(64);
    let mut rest = &mut scratch[skipped..skipped + all];
    lengths.map(|length| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(length);
        rest = others;
        part
    })
}
