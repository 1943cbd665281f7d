//! A tensor of a blob, and a tensor together with the digest of its blob: their sizes, rows and values.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::part::{Part, Parts, rows, stored};
use super::scaling::Scaling;
use crate::digest::Digest;
use crate::quant::scaled::{allows_scale, is_decoded};
use crate::quant::{self, DecodeError, Quantisation, StoredTensor, float};
use crate::safetensors::Dtype;

/// One tensor of a blob with its companions, which have been checked against it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    /// `BF16`, `F32`, ..., or the quantisation: `int4`, `int8`, `nvfp4`, `mxfp4`, `mxfp8`.
    pub dtype: String,
    pub quantisation: Option<Quantisation>,
    /// In elements, row-major; for a quantised tensor not in the words that hold them.
    pub shape: Vec<u64>,
    pub parts: Parts,
}

/// A tensor and the blob that holds it, as stored in the database and listed by `/lode/v1/tensors`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TensorInfo {
    pub name: String,
    /// `BF16`, `F32`, ..., or the quantisation.
    pub dtype: String,
    #[serde(rename = "quantization", default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<Quantisation>,
    /// In elements, row-major.
    pub shape: Vec<u64>,
    pub digest: Digest,
    /// The offset of the weight in the blob.
    pub offset: u64,
    /// The size of the weight and its companions together.
    pub size_bytes: u64,
    pub parts: Parts,
    /// The scales of FP8 or int8 codes, which may be in another blob.
    #[serde(rename = "scales", default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// Bytes of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByteRange<'a> {
    pub digest: &'a Digest,
    pub offset: u64,
    pub size_bytes: u64,
}

impl Tensor {
    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The size of the weight and its companions together.
    pub fn size_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }

    /// Returns the rows from `first` on as a separate tensor, so that a large tensor can be decoded in
    /// pieces. All axes but the last count as rows. `None` if there are no such rows, or if rows do not begin
    /// at whole bytes.
    pub fn rows(&self, first: u64, count: u64) -> Option<Tensor> {
        rows(&self.shape, &self.parts, first, count).map(|(shape, parts)| Tensor {
            shape,
            parts,
            ..self.clone()
        })
    }

    /// Decodes the tensor from the bytes of its blob, row-major; see [`quant::decode_f32`] for the
    /// arithmetic.
    pub fn decode_f32(&self, blob: &[u8]) -> Result<Vec<f32>, DecodeError> {
        quant::decode_f32(&self.stored(blob)?)
    }

    /// Returns its bytes, cut from those of its blob.
    pub fn stored<'a>(&self, blob: &'a [u8]) -> Result<StoredTensor<'a>, DecodeError> {
        let cut = |name: &'static str, part: &Part| {
            let start = usize::try_from(part.offset).ok();
            let len = usize::try_from(part.size_bytes).ok();
            let range = start.zip(len).and_then(|(start, len)| Some(start..start.checked_add(len)?));
            range.and_then(|range| blob.get(range)).ok_or(DecodeError::Length {
                part: name,
                found: blob.len(),
                expected: usize::try_from(part.offset.saturating_add(part.size_bytes)).unwrap_or(usize::MAX),
            })
        };
        let optional = |name, part: &Option<Part>| part.as_ref().map(|part| cut(name, part)).transpose();
        stored(
            &self.parts,
            self.quantisation,
            cut("the blob (for the weight)", &self.parts.weight)?,
            optional("the blob (for the scale)", &self.parts.scale)?,
            optional("the blob (for the bias)", &self.parts.bias)?,
            optional("the blob (for the global scale)", &self.parts.global_scale)?,
        )
    }

    /// Returns the tensor with its offsets moved by `by`, for a blob that contains its file at that offset.
    #[must_use]
    pub fn moved_by(mut self, by: u64) -> Tensor {
        let Parts { weight, scale, bias, global_scale } = &mut self.parts;
        for part in [Some(weight), scale.as_mut(), bias.as_mut(), global_scale.as_mut()].into_iter().flatten()
        {
            part.offset = part.offset.saturating_add(by);
        }
        self
    }

    /// Returns the tensor with the blob that holds it.
    pub fn in_blob(self, digest: Digest) -> TensorInfo {
        TensorInfo {
            size_bytes: self.size_bytes(),
            name: self.name,
            dtype: self.dtype,
            quantisation: self.quantisation,
            shape: self.shape,
            digest,
            offset: self.parts.weight.offset,
            parts: self.parts,
            scaling: None,
        }
    }
}

impl TensorInfo {
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product, dim| product.saturating_mul(*dim))
    }

    /// As [`Tensor::rows`], for tensors that are fetched by range. The fields of an untrusted description are
    /// checked when they are used.
    pub fn rows(&self, first: u64, count: u64) -> Option<TensorInfo> {
        let (shape, parts) = rows(&self.shape, &self.parts, first, count)?;
        let size_bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.size_bytes));
        let offset = parts.weight.offset;
        let mut scaling = self.scaling.clone();
        if let Some(scaling) = &mut scaling {
            let before = first.checked_mul(self.shape.last().copied().unwrap_or(1))?;
            let (whole, start) = scaling.cut.take().unwrap_or_else(|| (self.shape.clone(), 0));
            scaling.cut = Some((whole, start.checked_add(before)?));
        }
        Some(TensorInfo { shape, parts, offset, size_bytes, scaling, ..self.clone() })
    }

    /// Returns the byte ranges that decoding requires: the parts in the order of [`Parts::iter`], then the
    /// scales of its elements. `None` if the scales do not match the tensor.
    pub fn runs(&self) -> Option<Vec<ByteRange<'_>>> {
        let part = |part: &Part| ByteRange {
            digest: &self.digest,
            offset: part.offset,
            size_bytes: part.size_bytes,
        };
        let mut runs: Vec<ByteRange<'_>> = self.parts.iter().map(part).collect();
        if let Some(scaling) = &self.scaling {
            let (grid, first) = scaling.grid(&self.shape)?;
            let scales = grid.scales(first, self.elements());
            let width = scaling.part.dtype.bitsize() as u64 / 8;
            runs.push(ByteRange {
                digest: &scaling.digest,
                offset: scaling.part.offset.checked_add(scales.start.checked_mul(width)?)?,
                size_bytes: (scales.end - scales.start).checked_mul(width)?,
            });
        }
        Some(runs)
    }

    /// Decodes it from the bytes of its [`TensorInfo::runs`].
    pub fn decode_f32(&self, runs: &[&[u8]]) -> Result<Vec<f32>, DecodeError> {
        let mut bytes = runs.iter().copied();
        let weight = bytes.next().unwrap_or_default();
        if let Some(scaling) = &self.scaling {
            let codes = self.parts.weight.dtype;
            return scaled(&self.shape, codes, scaling, weight, bytes.next().unwrap_or_default());
        }
        let mut next = |there: bool| if there { bytes.next() } else { None };
        let scale = next(self.parts.scale.is_some());
        let bias = next(self.parts.bias.is_some());
        let global = next(self.parts.global_scale.is_some());
        quant::decode_f32(&stored(&self.parts, self.quantisation, weight, scale, bias, global)?)
    }
}

fn scaled(
    shape: &[u64],
    code_dtype: Dtype,
    scaling: &Scaling,
    codes: &[u8],
    scales: &[u8],
) -> Result<Vec<f32>, DecodeError> {
    let unfit = || DecodeError::Scales { tensor: shape.to_vec(), scales: scaling.part.shape.clone() };
    let (grid, first) = scaling.grid(shape).ok_or_else(unfit)?;
    let dtype = scaling.part.dtype;
    for (dtype, is_valid) in [(code_dtype, is_decoded(code_dtype)), (dtype, allows_scale(dtype))] {
        if !is_valid {
            return Err(DecodeError::Dtype { dtype });
        }
    }
    let mut factors = vec![0.0; scales.len() * 8 / dtype.bitsize()];
    float::decode_f32_into(dtype, scales, &mut factors)?;
    let mut out = vec![0.0; codes.len()];
    grid.decode(code_dtype, first, codes, &factors, &mut out)?;
    Ok(out)
}
