//! The stored arrays of a tensor: their places in a blob, and their bytes as a tensor that can be decoded.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::quant::{DecodeError, Quantisation, StoredTensor};
use crate::safetensors::Dtype;

/// A run of bytes in a blob that is one stored array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Part {
    #[schema(value_type = String, example = "BF16")]
    pub dtype: Dtype,
    /// The shape as stored, row-major. In U32 words if `dtype` is U32 and the tensor is quantised.
    pub shape: Vec<u64>,
    /// From the start of the blob. No alignment is guaranteed.
    pub offset: u64,
    pub size_bytes: u64,
}

/// The parts of one tensor in a blob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Parts {
    pub weight: Part,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_scale: Option<Part>,
}

impl Parts {
    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        [Some(&self.weight), self.scale.as_ref(), self.bias.as_ref(), self.global_scale.as_ref()]
            .into_iter()
            .flatten()
    }
}

pub(super) fn stored<'a>(
    parts: &Parts,
    quantisation: Option<Quantisation>,
    weight: &'a [u8],
    scale: Option<&'a [u8]>,
    bias: Option<&'a [u8]>,
    global_scale: Option<&'a [u8]>,
) -> Result<StoredTensor<'a>, DecodeError> {
    let four = |bytes: &[u8]| {
        let wrong = DecodeError::Length { part: "global scale", found: bytes.len(), expected: 4 };
        <[u8; 4]>::try_from(bytes).map(f32::from_le_bytes).map_err(|_| wrong)
    };
    Ok(StoredTensor {
        dtype: parts.weight.dtype,
        quantisation,
        weight,
        scale: scale.unwrap_or_default(),
        scale_dtype: parts.scale.as_ref().map_or(Dtype::F32, |scale| scale.dtype),
        bias: bias.unwrap_or_default(),
        global_scale: global_scale.map(four).transpose()?,
    })
}

pub(super) fn rows(shape: &[u64], parts: &Parts, first: u64, count: u64) -> Option<(Vec<u64>, Parts)> {
    let (columns, leading) = shape.split_last()?;
    let total = leading.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    if first.checked_add(count)? > total {
        return None;
    }
    let cut = |part: &Part| {
        let row_bytes = part.size_bytes.checked_div(total)?;
        if row_bytes.checked_mul(total)? != part.size_bytes {
            return None;
        }
        Some(Part {
            dtype: part.dtype,
            shape: vec![count, *part.shape.last()?],
            offset: part.offset.checked_add(row_bytes.checked_mul(first)?)?,
            size_bytes: row_bytes.checked_mul(count)?,
        })
    };
    let optional = |part: &Option<Part>| match part {
        Some(part) => cut(part).map(Some),
        None => Some(None),
    };
    let parts = Parts {
        weight: cut(&parts.weight)?,
        scale: optional(&parts.scale)?,
        bias: optional(&parts.bias)?,
        global_scale: parts.global_scale.clone(),
    };
    Some((vec![count, *columns], parts))
}
