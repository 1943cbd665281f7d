//! The interface of a model: where its tensors come from, and its forward pass. The engine provides the
//! tensors and calls the pass.

use super::error::LoadError;
use lode_kernels::{Batch, DeviceError, Kernels, Weight};

/// A model's tensors by name, checked when they are read.
pub trait Tensors {
    /// Whether the model has this tensor.
    fn has(&self, name: &str) -> bool;

    /// The matrix with this name; an error unless its shape is `[rows, cols]`.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, LoadError>;

    /// The vector with this name; an error unless it has `len` floats.
    fn vector(&mut self, name: &str, len: usize) -> Result<Weight, LoadError>;
}

/// The dimensions of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// This crate's name for it.
    pub architecture: &'static str,
    pub vocab_size: usize,
    /// Maximum number of positions.
    pub context_length: usize,
    pub embedding_length: usize,
    pub hidden_dim: usize,
    pub layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

/// The rows that a pass copies to the host.
#[derive(Debug, Default)]
pub struct Output {
    /// For the rows of `Batch::logits`: `[L, vocab_size]`.
    pub logits: Vec<f32>,
    /// For the rows of `Batch::hidden`: `[H, embedding_length]`.
    pub hidden: Vec<f32>,
    /// For the sequences of [`Pass::scored`]: `[S, classes]`.
    pub scores: Vec<f32>,
}

/// The inputs and outputs of one pass.
pub struct Pass<'a, K: Kernels> {
    pub kernels: &'a mut K,
    pub batch: &'a Batch,
    /// The first rows of the sequences whose classes are requested, ascending.
    pub scored: &'a [u32],
    /// The token type of each row.
    pub types: &'a [u32],
    /// The KV cache for the batch.
    pub cache: &'a mut K::Cache,
    /// The rows that the batch requests are appended here.
    pub output: &'a mut Output,
    /// Checked between layers. Once true it stays true, and the pass may end without its rows.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

/// A model's forward pass on the device of `K`.
pub trait Forward<K: Kernels>: Send {
    fn forward(&mut self, pass: Pass<'_, K>) -> Result<(), DeviceError>;
}
