//! FP8 and int8 as checkpoints publish them: codes of one byte, and a separate array of the scales by which
//! they are multiplied: one for the tensor, one per row, or one per block of rows and columns (usually 128 by
//! 128).

use std::ops::Range;

use safetensors::Dtype;

pub use super::error::ScaledError;
use super::float;

/// Whether codes of this type are decoded.
pub(crate) fn is_decoded(codes: Dtype) -> bool {
    matches!(codes, Dtype::F8_E4M3 | Dtype::I8)
}

/// Whether scales may be stored as this type.
pub fn allows_scale(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F8_E8M0)
}

/// The mapping from elements to scales. Blocks at the edges of a matrix are cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// The rows of one matrix of a stack.
    rows: u64,
    columns: u64,
    block_rows: u64,
    block_columns: u64,
}

impl Grid {
    /// Maps scales of one shape to a tensor of another; `block` has the rows and columns per scale. `None` if
    /// the shapes do not match.
    pub fn of(tensor: &[u64], scales: &[u64], block: [u64; 2]) -> Option<Grid> {
        let (columns, leading) = tensor.split_last()?;
        let (rows, stacked) = leading.split_last().unwrap_or((&1, &[]));
        if tensor.contains(&0) || block.contains(&0) {
            return None;
        }
        let elements = tensor.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
        let grid =
            |block_rows, block_columns| Grid { rows: *rows, columns: *columns, block_rows, block_columns };
        let is = |matrix: &[u64]| scales.strip_prefix(stacked) == Some(matrix);
        match scales {
            [] | [1] => {
                let rows = elements / columns;
                Some(Grid { rows, columns: *columns, block_rows: rows, block_columns: *columns })
            }
            _ if is(&[rows.div_ceil(block[0]), columns.div_ceil(block[1])]) => Some(grid(block[0], block[1])),
            _ if leading.is_empty() => None,
            _ if is(&[*rows]) || is(&[*rows, 1]) => Some(grid(1, *columns)),
            _ => None,
        }
    }

    /// Rows and columns that share a scale.
    pub fn block(&self) -> [u64; 2] {
        [self.block_rows, self.block_columns]
    }

    /// The position of an element's scale.
    fn scale_of(&self, element: u64) -> u64 {
        let (row, column) = (element / self.columns, element % self.columns);
        let (matrix, row) = (row / self.rows, row % self.rows);
        let row = matrix * self.rows.div_ceil(self.block_rows) + row / self.block_rows;
        row * self.columns.div_ceil(self.block_columns) + column / self.block_columns
    }

    /// The positions of the scales of a run of elements, in the array of all scales; never more than a few
    /// per element.
    pub fn scales(&self, first: u64, count: u64) -> Range<u64> {
        let Some(last) = count.checked_sub(1).map(|more| first + more) else { return 0..0 };
        if first / self.columns == last / self.columns {
            return self.scale_of(first)..self.scale_of(last) + 1;
        }
        // Use whole rows of scales: the blocks of a later row begin again at the first.
        let start = |element: u64| element / self.columns * self.columns;
        self.scale_of(start(first))..self.scale_of(start(last) + self.columns - 1) + 1
    }

    /// Returns the scales of whole rows, those of each row in the order of its columns. `scales` are those of
    /// [`Grid::scales`] for these rows.
    pub fn scales_by_row(&self, first_row: u64, rows: u64, scales: &[f32]) -> Vec<f32> {
        let across = self.columns.div_ceil(self.block_columns);
        let begin = self.scale_of(first_row * self.columns);
        let of_row = |row: u64| {
            let start = (self.scale_of(row * self.columns) - begin) as usize;
            scales[start..start + across as usize].iter().copied()
        };
        (first_row..first_row + rows).flat_map(of_row).collect()
    }

    /// Decodes codes of this type, the elements from `first` on: code times scale, rounded to float32.
    /// `scales` are those of [`Grid::scales`]; `out` has one element per code. A scale may be zero only if
    /// its codes are.
    pub fn decode(
        &self,
        dtype: Dtype,
        first: u64,
        codes: &[u8],
        scales: &[f32],
        out: &mut [f32],
    ) -> Result<(), ScaledError> {
        debug_assert_eq!(codes.len(), out.len());
        let number: fn(u8) -> f32 = match dtype {
            Dtype::I8 => |code| f32::from(code.cast_signed()),
            _ => float::e4m3_to_f32,
        };
        let begin = self.scales(first, codes.len() as u64).start;
        let mut at = 0;
        while at < codes.len() {
            let element = first + at as u64;
            let column = element % self.columns;
            let end = (column / self.block_columns + 1).saturating_mul(self.block_columns).min(self.columns);
            let run = at..codes.len().min(at + (end - column) as usize);
            let scale = self.scale_of(element);
            let value = scales.get((scale - begin) as usize).copied().unwrap_or(f32::NAN);
            let is_zero = |codes: &[u8]| codes.iter().all(|code| number(*code) == 0.0);
            if !value.is_finite() || value < 0.0 || (value == 0.0 && !is_zero(&codes[run.clone()])) {
                return Err(ScaledError::Scale { scale, value });
            }
            let mut is_finite = true;
            for (x, code) in out[run.clone()].iter_mut().zip(&codes[run.clone()]) {
                *x = number(*code) * value;
                is_finite &= x.is_finite();
            }
            if !is_finite {
                let found = out[run].iter().enumerate().find(|(_, x)| !x.is_finite());
                let (within, value) = found.map_or((0, f32::NAN), |(within, x)| (within as u64, *x));
                return Err(ScaledError::NotFinite { element: element + within, value });
            }
            at = run.end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: [u64; 2] = [128, 128];

    /// Returns every element's value by the definition: its code times the scale at its row and column of
    /// blocks.
    fn defined(shape: [u64; 3], block: [u64; 2], codes: &[u8], scales: &[f32]) -> Vec<f32> {
        let [n, rows, columns] = shape;
        let (down, across) = (rows.div_ceil(block[0]), columns.div_ceil(block[1]));
        let mut values = Vec::new();
        for matrix in 0..n {
            for row in 0..rows {
                for column in 0..columns {
                    let code = codes[((matrix * rows + row) * columns + column) as usize];
                    let scale = (matrix * down + row / block[0]) * across + column / block[1];
                    values.push(float::e4m3_to_f32(code) * scales[scale as usize]);
                }
            }
        }
        values
    }

    #[test]
    fn runs_decode_by_the_definition() {
        for (shape, scales, block, effective) in [
            (vec![5u64, 7], vec![3u64, 3], [2u64, 3], [2u64, 3]),
            (vec![5, 7], vec![], BLOCK, [5, 7]),
            (vec![5, 7], vec![1], BLOCK, [5, 7]),
            (vec![5, 7], vec![5], BLOCK, [1, 7]),
            (vec![5, 7], vec![5, 1], BLOCK, [1, 7]),
            (vec![5, 7], vec![5, 7], [1, 1], [1, 1]),
            (vec![5, 7], vec![1, 1], BLOCK, [5, 7]),
            (vec![3, 5, 7], vec![3, 3, 2], [2, 4], [2, 4]),
            (vec![3, 5, 7], vec![3, 5, 1], BLOCK, [1, 7]),
        ] {
            let grid = Grid::of(&shape, &scales, block).unwrap();
            let [n, rows, columns] = match shape[..] {
                [rows, columns] => [1, rows, columns],
                _ => [shape[0], shape[1], shape[2]],
            };
            let elements = n * rows * columns;
            let codes: Vec<u8> = (0..elements).map(|at| (at * 37 % 127 + at % 2 * 128) as u8).collect();
            let count = n * rows.div_ceil(effective[0]) * columns.div_ceil(effective[1]);
            let factors: Vec<f32> = (0..count).map(|at| 0.25 + at as f32 * 0.37).collect();
            let expect = defined([n, rows, columns], effective, &codes, &factors);
            for first in 0..elements {
                for end in first..=elements {
                    let run = first as usize..end as usize;
                    let some = grid.scales(first, end - first);
                    assert!(some.end <= count && (first < end || some.is_empty()), "{some:?}");
                    let mut out = vec![0.0; run.len()];
                    let some = &factors[some.start as usize..some.end as usize];
                    grid.decode(Dtype::F8_E4M3, first, &codes[run.clone()], some, &mut out).unwrap();
                    assert_eq!(out, expect[run], "{shape:?} under {scales:?} from {first}");
                }
            }
        }
    }

    #[test]
    fn integers_and_their_scales_by_row() {
        let grid = Grid::of(&[3, 5], &[2, 3], [2, 2]).unwrap();
        let scales = [1.0, 2.0, 4.0, 0.5, 0.25, 8.0];
        let codes: [i8; 15] = [1, -1, 127, -128, 3, 0, 5, -6, 7, 8, 2, -2, 4, 0, -1];
        let mut out = [0.0; 15];
        grid.decode(Dtype::I8, 0, &codes.map(i8::cast_unsigned), &scales, &mut out).unwrap();
        let expect = [1.0, -1.0, 254.0, -256.0, 12.0, 0.0, 5.0, -12.0, 14.0, 32.0, 1.0, -1.0, 1.0, 0.0, -8.0];
        assert_eq!(out, expect);
        let some = |rows: Range<u64>| {
            let scales = &scales[grid_range(&grid, &rows)];
            grid.scales_by_row(rows.start, rows.end - rows.start, scales)
        };
        assert_eq!(some(0..3), [1.0, 2.0, 4.0, 1.0, 2.0, 4.0, 0.5, 0.25, 8.0]);
        assert_eq!(some(1..3), [1.0, 2.0, 4.0, 0.5, 0.25, 8.0]);
        assert_eq!(some(2..3), [0.5, 0.25, 8.0]);
        // A stack has blocks of its own for each matrix, also where rows of a block are missing.
        let stack = Grid::of(&[2, 3, 4], &[2, 2, 1], [2, 4]).unwrap();
        assert_eq!(stack.scales_by_row(0, 6, &[1.0, 2.0, 3.0, 4.0]), [1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
        assert_eq!(stack.scales_by_row(3, 3, &[3.0, 4.0]), [3.0, 3.0, 4.0]);
        // A zero scale of other codes is refused, as for FP8.
        let zero = [0.0, 2.0, 4.0, 0.5, 0.25, 8.0];
        let error = grid.decode(Dtype::I8, 0, &codes.map(i8::cast_unsigned), &zero, &mut out).unwrap_err();
        assert_eq!(error, ScaledError::Scale { scale: 0, value: 0.0 });
    }

    fn grid_range(grid: &Grid, rows: &Range<u64>) -> Range<usize> {
        let some = grid.scales(rows.start * grid.columns, (rows.end - rows.start) * grid.columns);
        some.start as usize..some.end as usize
    }

    #[test]
    fn shapes_that_do_not_fit() {
        for (tensor, scales) in [
            (&[256u64, 300][..], &[2u64, 2][..]),
            (&[256, 300], &[3, 2]),
            (&[256, 300], &[1, 1]),
            (&[256, 300], &[2]),
            (&[256, 300], &[300]),
            (&[256, 300], &[2, 3, 1]),
            (&[4, 256, 300], &[2, 3]),
            (&[256], &[256]),
            (&[0, 300], &[0, 3]),
            (&[0], &[1]),
            (&[], &[]),
            (&[u64::MAX, 2, 2], &[1]),
        ] {
            assert_eq!(Grid::of(tensor, scales, BLOCK), None, "{tensor:?} under {scales:?}");
        }
        assert_eq!(Grid::of(&[4, 4], &[4, 4], [0, 1]), None);
    }

    #[test]
    fn non_finite_products_are_refused() {
        let grid = Grid::of(&[2, 4], &[2], BLOCK).unwrap();
        let decode =
            |codes: &[u8], scales: &[f32]| grid.decode(Dtype::F8_E4M3, 0, codes, scales, &mut [0.0; 8]);
        let codes = [0x38, 0xb8, 0x7e, 1, 0, 0x80, 0, 0];
        assert_eq!(decode(&codes, &[1.0, 0.0]), Ok(()));
        for bad in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
            let error = decode(&codes, &[bad, 1.0]).unwrap_err();
            assert!(matches!(error, ScaledError::Scale { scale: 0, .. }), "{bad}: {error}");
        }
        assert!(matches!(decode(&codes, &[1.0, -1e-9]), Err(ScaledError::Scale { scale: 1, .. })));
        for nan in [0x7f, 0xff] {
            let mut codes = codes;
            codes[5] = nan;
            assert!(matches!(decode(&codes, &[1.0; 2]), Err(ScaledError::NotFinite { element: 5, .. })));
        }
        assert!(matches!(decode(&codes, &[1e37, 1.0]), Err(ScaledError::NotFinite { element: 2, .. })));
    }
}
