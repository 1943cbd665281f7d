//! Rows of packed values, of a weight or of a page of the cache. Lengths are validated on construction; the
//! unsafe code of the operations relies on that.

use lode_model::quant::ggml;

use super::weight::{Dtype, Float, Scaled, Weight};

/// The format of a packed row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Float(Float),
    /// See [`Dtype::Affine`]; scales and biases are stored separately.
    Affine {
        bits: u8,
        group: usize,
        scales: Float,
    },
    /// ggml's block_q8_0: `d` as f16, then 32 signed bytes; value = `d * q`.
    Q8_0,
    /// Codes with separate one-byte scales.
    Scaled(Scaled),
    /// Any other block format of ggml.
    Ggml(ggml::Type),
}

/// Values per Q8_0 block.
pub(super) const QK8_0: usize = 32;
/// Bytes per Q8_0 block.
pub(super) const BLOCK_Q8_0: usize = 2 + QK8_0;

impl Kind {
    /// Bytes of a row's codes. `cols` must suit the kind: see [`Kind::multiple`].
    #[inline]
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::Float(float) => cols * float.size(),
            Self::Affine { bits, .. } => cols / 8 * usize::from(bits),
            Self::Q8_0 => cols / QK8_0 * BLOCK_Q8_0,
            Self::Scaled(format) => cols / 8 * format.bits(),
            Self::Ggml(ty) => cols / ty.block_elements() as usize * ty.block_bytes() as usize,
        }
    }

    /// Row lengths are multiples of this number.
    pub fn multiple(self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Affine { group, .. } => group,
            Self::Q8_0 => QK8_0,
            Self::Scaled(_) => 32,
            Self::Ggml(ty) => ty.block_elements() as usize,
        }
    }

    #[inline]
    fn row_scale_bytes(self, cols: usize) -> usize {
        match self {
            Self::Affine { group, scales, .. } => cols / group * scales.size(),
            Self::Scaled(format) => cols / format.group(),
            _ => 0,
        }
    }

    #[inline]
    fn row_bias_bytes(self, cols: usize) -> usize {
        if matches!(self, Self::Affine { .. }) { self.row_scale_bytes(cols) } else { 0 }
    }
}

/// `n` rows of `cols` values. Invariant: each slice has the length that kind and shape require.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    kind: Kind,
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
    /// If `codes` is not a whole number of rows, or the kind has separate scales.
    pub fn new(kind: Kind, cols: usize, codes: &'a [u8]) -> Self {
        let row = kind.row_bytes(cols);
        assert!(cols > 0 && cols.is_multiple_of(kind.multiple()) && codes.len().is_multiple_of(row));
        assert!(!matches!(kind, Kind::Affine { .. } | Kind::Scaled(_)));
        let (n, strides) = (codes.len() / row, [row, 0, 0]);
        Self { kind, n, cols, codes, scales: &[], biases: &[], strides, factor: 1.0 }
    }

    /// Creates rows of f32 values in native byte order.
    pub fn f32s(cols: usize, numbers: &'a [f32]) -> Self {
        Self::new(Kind::Float(Float::F32), cols, bytemuck::cast_slice(numbers))
    }

    pub fn of(weight: &'a Weight) -> Self {
        let kind = match weight.dtype() {
            Dtype::Float(float) => Kind::Float(float),
            Dtype::Affine { bits, group, scales } => Kind::Affine { bits, group, scales },
            Dtype::Scaled(format) => Kind::Scaled(format),
            Dtype::Ggml(ggml::Type::Q8_0) => Kind::Q8_0,
            Dtype::Ggml(ty) => Kind::Ggml(ty),
        };
        // `Weight::new` validated the lengths.
        let (codes, scales, biases) = (weight.codes(), weight.scales(), weight.biases());
        let (n, cols, factor) = (weight.rows(), weight.cols(), weight.factor());
        let strides = [kind.row_bytes(cols), kind.row_scale_bytes(cols), kind.row_bias_bytes(cols)];
        Self { kind, n, cols, codes, scales, biases, strides, factor }
    }

    pub fn kind(&self) -> Kind {
        self.kind
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
