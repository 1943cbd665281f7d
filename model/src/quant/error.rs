//! Why stored bytes cannot be decoded. Every decoder of this folder returns these errors.

use safetensors::Dtype;

use super::kind::Kind;

/// Why stored bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    #[error("values of {dtype} cannot be decoded to float32")]
    Dtype { dtype: Dtype },
    #[error("{part} has {found} bytes, expected {expected}")]
    Length { part: &'static str, found: usize, expected: usize },
    #[error("{kind} does not have scales of {dtype}")]
    Scale { kind: Kind, dtype: Dtype },
    #[error(transparent)]
    Scaled(#[from] ScaledError),
    #[error("scales of shape {scales:?} do not match a tensor of shape {tensor:?}")]
    Scales { tensor: Vec<u64>, scales: Vec<u64> },
    #[error("{elements} elements of {kind} are not whole groups of {group_size}")]
    Group { kind: Kind, group_size: u32, elements: usize },
}

/// Why codes and their separate scales cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ScaledError {
    #[error("scale {scale} is {value}, expected a positive number")]
    Scale { scale: u64, value: f32 },
    #[error("element {element} is {value}, expected a finite number")]
    NotFinite { element: u64, value: f32 },
}

/// Checks the length of a part of a tensor.
pub(super) fn check_len(part: &'static str, bytes: &[u8], expected: usize) -> Result<(), DecodeError> {
    if bytes.len() == expected {
        Ok(())
    } else {
        Err(DecodeError::Length { part, found: bytes.len(), expected })
    }
}
