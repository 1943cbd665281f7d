//! Tensors as stored in blobs: which bytes of which blob are a weight, its scales and its biases. Reads every
//! form of tensor blob, and whole safetensors files, from their checked headers.

mod info;
mod part;
mod read;
pub mod scaled;
mod scaling;

pub use info::{ByteRange, Tensor, TensorInfo};
pub use part::{Part, Parts};
pub use read::{TensorError, read_blob, read_plain};
pub use scaling::Scaling;

#[cfg(test)]
mod tests;
