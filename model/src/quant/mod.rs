//! Quantised number formats: their names and parameters, and exact decoding of every stored tensor to
//! float32. The layouts are those of tensor blobs (MLX) and of GGUF files (ggml); each is defined only here.
//! Element types are those of the `safetensors` crate, so that the file formats can depend on this module.

pub mod affine;
mod decode;
mod error;
pub mod float;
mod fp;
pub mod ggml;
mod kind;
pub mod scaled;

pub use affine::{NotFinite, QuantiseError, Quantised, quantise};
pub use decode::{StoredTensor, decode_f32, decode_f32_into};
pub use error::DecodeError;
pub use kind::{Kind, Quantisation, UnknownKind};

#[cfg(test)]
mod golden;
