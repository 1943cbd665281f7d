//! Rows of packed values, of a weight or of a page of the cache. Lengths are validated on construction; the
//! unsafe code of the operations relies on that.

use super::dtype::{Dtype, Float};
use super::weight::Weight;

/// `n` rows of `cols` values. Invariant: each slice has the length that format and shape require.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    dtype: Dtype,
    n: usize,
    cols: usize,
    codes: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
    /// Bytes per row of each part, cached because rows are accessed far more often than created.
    strides: [usize; 3],
    factor: f32,
}

impl<'a> Rows<'a> {
    /// Creates contiguous rows of floats or of blocks.
    ///
    /// # Panics
    /// If `codes` is not a whole number of rows, or the format has separate scales.
    pub fn new(dtype: Dtype, cols: usize, codes: &'a [u8]) -> Self {
        let row = dtype.row_bytes(cols);
        assert!(cols > 0 && cols.is_multiple_of(dtype.multiple()) && codes.len().is_multiple_of(row));
        assert!(!matches!(dtype, Dtype::Affine { .. } | Dtype::Scaled(_) | Dtype::ByteCodes { .. }));
        let (n, strides) = (codes.len() / row, [row, 0, 0]);
        Self { dtype, n, cols, codes, scales: &[], biases: &[], strides, factor: 1.0 }
    }

    /// Creates rows of f32 values in native byte order.
    pub fn f32s(cols: usize, numbers: &'a [f32]) -> Self {
        Self::new(Dtype::Float(Float::F32), cols, bytemuck::cast_slice(numbers))
    }

    pub fn of(weight: &'a Weight) -> Self {
        let dtype = weight.dtype();
        // `Weight::new` validated the lengths.
        let (codes, scales, biases) = (weight.codes(), weight.scales(), weight.biases());
        let (n, cols, factor) = (weight.rows(), weight.cols(), weight.factor());
        let strides = [dtype.row_bytes(cols), dtype.row_scale_bytes(cols), dtype.row_bias_bytes(cols)];
        Self { dtype, n, cols, codes, scales, biases, strides, factor }
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn len(&self) -> usize {
        self.n
    }

    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The factor of all values: 1 except for NVFP4.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Returns the codes, scales and biases of row `row`.
    #[inline]
    pub fn row(&self, row: usize) -> (&'a [u8], &'a [u8], &'a [u8]) {
        let part = |bytes: &'a [u8], size: usize| &bytes[row * size..(row + 1) * size];
        let [codes, scales, biases] = self.strides;
        (part(self.codes, codes), part(self.scales, scales), part(self.biases, biases))
    }

    /// Returns a range of the rows.
    pub fn range(&self, first: usize, n: usize) -> Self {
        let part = |bytes: &'a [u8], size: usize| &bytes[first * size..(first + n) * size];
        let [codes, scales, biases] = self.strides;
        Self {
            n,
            codes: part(self.codes, codes),
            scales: part(self.scales, scales),
            biases: part(self.biases, biases),
            ..*self
        }
    }
}

/// Decodes value `index` of packed floats.
pub(super) fn float_at(float: Float, bytes: &[u8], index: usize) -> f32 {
    let at = index * float.size();
    match float {
        Float::F32 => f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]),
        Float::F16 => half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
        Float::BF16 => half::bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
    }
}
