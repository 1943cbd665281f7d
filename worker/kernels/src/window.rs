//! Parts of a row-major matrix that several threads write at the same time, each its own columns or rows. The
//! device implementation creates them, the operations write through them.
#![allow(unsafe_code)] // Safe Rust cannot split a matrix by columns.

use std::marker::PhantomData;

/// Columns `first..first + cols` of all rows of a matrix, written by one thread.
pub struct Window<'a> {
    at: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

impl<'a> Window<'a> {
    /// Creates a window of `cols` columns from `first` over a matrix with rows of `stride` values.
    ///
    /// # Panics
    /// If the columns are not inside the rows.
    pub fn new(matrix: &'a mut [f32], stride: usize, first: usize, cols: usize) -> Self {
        Shared::new(matrix, stride).window(first, cols)
    }

    /// Returns columns `first..first + cols` of the window.
    ///
    /// # Panics
    /// If there are fewer columns.
    pub fn columns(&mut self, first: usize, cols: usize) -> Window<'_> {
        assert!(first + cols <= self.cols);
        // SAFETY: within the first row, or one past the end of an empty matrix, where `row` never reads.
        let at = if self.rows == 0 { self.at } else { unsafe { self.at.add(first) } };
        Window { at, stride: self.stride, rows: self.rows, cols, matrix: PhantomData }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the window's part of a row.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: `Shared::new` checked that row `row` and these columns are inside the matrix. `&mut self`
        // and the contract of `Shared::columns` make this the only reference to them.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(row * self.stride), self.cols) }
    }
}

/// A matrix whose columns or rows are distributed to threads.
pub(super) struct Shared<'a, T> {
    at: *mut T,
    rows: usize,
    stride: usize,
    matrix: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` split into parts. Callers on several threads guarantee that their parts are
// disjoint.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// # Panics
    /// If the matrix is not a whole number of rows.
    pub(super) fn new(matrix: &'a mut [T], stride: usize) -> Self {
        assert!(stride > 0 && matrix.len().is_multiple_of(stride));
        Self { at: matrix.as_mut_ptr(), rows: matrix.len() / stride, stride, matrix: PhantomData }
    }

    /// Returns columns `first..first + cols` of row `row`.
    ///
    /// # Safety
    /// No other live part of this matrix overlaps them.
    pub(super) unsafe fn part(&self, row: usize, first: usize, cols: usize) -> &'a mut [T] {
        assert!(row < self.rows && first + cols <= self.stride);
        // SAFETY: inside the matrix by the assertion; the caller guarantees that it is not shared.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(row * self.stride + first), cols) }
    }
}

impl<'a> Shared<'a, f32> {
    fn window(self, first: usize, cols: usize) -> Window<'a> {
        // SAFETY: `self` is consumed, so no other part exists.
        unsafe { self.columns(first, cols) }
    }

    /// Returns columns `first..first + cols` of all rows.
    ///
    /// # Safety
    /// No other live part of this matrix overlaps them.
    pub(super) unsafe fn columns(&self, first: usize, cols: usize) -> Window<'a> {
        assert!(first + cols <= self.stride);
        // SAFETY: within the first row, or one past the end of an empty matrix of zero rows, where `row`
        // never reads.
        let at = if self.rows == 0 { self.at } else { unsafe { self.at.add(first) } };
        Window { at, stride: self.stride, rows: self.rows, cols, matrix: PhantomData }
    }

    /// Returns columns `first..first + cols` of rows `row..row + rows`.
    ///
    /// # Safety
    /// No other live part of this matrix overlaps them.
    pub(super) unsafe fn block(&self, row: usize, rows: usize, first: usize, cols: usize) -> Window<'a> {
        assert!(rows > 0 && row + rows <= self.rows && first + cols <= self.stride);
        // SAFETY: within a row of the matrix by the assertion.
        let at = unsafe { self.at.add(row * self.stride + first) };
        Window { at, stride: self.stride, rows, cols, matrix: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_sees_its_columns() {
        let mut matrix: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let mut window = Window::new(&mut matrix, 4, 1, 2);
        assert_eq!((window.rows(), window.cols()), (3, 2));
        assert_eq!(window.row(2), [9.0, 10.0]);
        window.row(1)[0] = -1.0;
        window.columns(1, 1).row(0)[0] = -2.0;
        assert_eq!((matrix[5], matrix[2]), (-1.0, -2.0));
    }

    #[test]
    #[should_panic(expected = "first + cols")]
    fn a_window_stays_inside() {
        Window::new(&mut [0.0; 8], 4, 3, 2);
    }
}
