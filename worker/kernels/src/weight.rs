//! A weight in its stored form: bytes, dtype and shape, validated against each other. Loaders build it;
//! `Kernels::matrix` and `Kernels::vector` load it. It is not converted to floats on the host without need.

use bytes::Bytes;

use super::dtype::{Dtype, Float};

/// A matrix of `rows` rows of `cols` values (a vector is one row), row-major, with any alignment.
///
/// The bytes usually point into a mapped file; cloning does not copy them.
#[derive(Clone, Debug)]
pub struct Weight {
    dtype: Dtype,
    rows: usize,
    cols: usize,
    codes: Bytes,
    scales: Bytes,
    biases: Bytes,
    factor: f32,
}

/// The parts of a weight do not match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    #[error("rows of {cols} values cannot be stored as {dtype:?}")]
    RowLength { dtype: Dtype, cols: usize },
    #[error("the {part} have {found} bytes, expected {expected}")]
    Size { part: &'static str, expected: u128, found: usize },
}

impl Weight {
    /// Creates a weight and validates the lengths. `scales` and `biases` are empty if the dtype has none.
    pub fn new(
        dtype: Dtype,
        (rows, cols): (usize, usize),
        codes: Bytes,
        scales: Bytes,
        biases: Bytes,
    ) -> Result<Self, WeightError> {
        let row_bytes = dtype.checked_row_bytes(cols).ok_or(WeightError::RowLength { dtype, cols })?;
        let parts = [
            ("codes", &codes, row_bytes),
            ("scales", &scales, dtype.row_scale_bytes(cols)),
            ("biases", &biases, dtype.row_bias_bytes(cols)),
        ];
        for (part, bytes, row) in parts {
            let expected = rows as u128 * row as u128;
            if bytes.len() as u128 != expected {
                return Err(WeightError::Size { part, expected, found: bytes.len() });
            }
        }
        Ok(Self { dtype, rows, cols, codes, scales, biases, factor: 1.0 })
    }

    /// Adds a factor for the whole weight, which only NVFP4 has, in either container.
    #[must_use]
    pub fn with_factor(self, factor: f32) -> Self {
        Self { factor, ..self }
    }

    /// Creates a weight of floats.
    pub fn floats(float: Float, shape: (usize, usize), bytes: Bytes) -> Result<Self, WeightError> {
        Self::new(Dtype::Float(float), shape, bytes, Bytes::new(), Bytes::new())
    }

    /// Returns rows `first..first + n`, without copying.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn row_range(&self, first: usize, n: usize) -> Self {
        assert!(first + n <= self.rows);
        let cut = |bytes: &Bytes| {
            let row = bytes.len() / self.rows.max(1);
            bytes.slice(first * row..(first + n) * row)
        };
        let (codes, scales, biases) = (cut(&self.codes), cut(&self.scales), cut(&self.biases));
        Self { rows: n, codes, scales, biases, ..self.clone() }
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn codes(&self) -> &Bytes {
        &self.codes
    }

    pub fn scales(&self) -> &Bytes {
        &self.scales
    }

    pub fn biases(&self) -> &Bytes {
        &self.biases
    }

    /// The factor of all values: 1 except for NVFP4.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// Bytes that a pass over the weight reads.
    pub fn size_bytes(&self) -> u64 {
        (self.codes.len() + self.scales.len() + self.biases.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use lode_model::quant::ggml;

    use super::super::dtype::{ByteCode, Scaled};
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let bytes = |n: usize| Bytes::from(vec![0; n]);
        let int4 = |group| Dtype::Affine { bits: 4, group, scales: Float::BF16 };
        let check = |dtype, shape, codes, scales, ok: bool| {
            let weight = Weight::new(dtype, shape, bytes(codes), bytes(scales), bytes(scales));
            assert_eq!(weight.is_ok(), ok, "{dtype:?} {shape:?} {codes} {scales}");
        };
        check(Dtype::Float(Float::BF16), (3, 5), 30, 0, true);
        check(Dtype::Float(Float::BF16), (3, 5), 31, 0, false);
        check(Dtype::Float(Float::F32), (3, 5), 60, 4, false);
        check(int4(64), (3, 128), 192, 12, true);
        check(int4(64), (3, 128), 192, 10, false);
        check(int4(64), (3, 96), 144, 6, false);
        check(int4(16), (3, 96), 144, 36, false);
        check(Dtype::Ggml(ggml::Type::Q4_K), (2, 512), 576, 0, true);
        check(Dtype::Ggml(ggml::Type::Q4_K), (2, 128), 144, 0, false);
        let nvfp4 = Weight::new(Dtype::Scaled(Scaled::Nvfp4), (2, 64), bytes(64), bytes(8), bytes(0));
        assert!(nvfp4.is_ok());
        check(Dtype::Scaled(Scaled::Mxfp8), (2, 48), 96, 2, false);
        let fp8 = |group| Dtype::ByteCodes { code: ByteCode::E4m3, group };
        for (dtype, shape, scales, ok) in [
            (fp8(128), (2, 320), 24, true),
            (fp8(128), (2, 320), 16, false),
            (fp8(320), (2, 320), 8, true),
            (fp8(100), (2, 320), 32, false),
            (fp8(0), (2, 320), 0, false),
            (fp8(128), (2, 100), 8, false),
        ] {
            let weight = Weight::new(dtype, shape, bytes(shape.0 * shape.1), bytes(scales), bytes(0));
            assert_eq!(weight.is_ok(), ok, "{dtype:?} {shape:?} {scales}");
        }
        check(Dtype::Float(Float::F32), (usize::MAX, usize::MAX), 0, 0, false);
    }
}
