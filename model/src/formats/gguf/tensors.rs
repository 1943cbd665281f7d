//! The tensors of a GGUF file in Lode's form: row-major shapes, and offsets from the start of the file.

use super::header::{Header, TensorEntry};
use crate::quant::{Kind, Quantisation};
use crate::safetensors::Dtype;
use crate::tensor::{Part, Parts, Tensor};

impl Header {
    /// Returns every tensor, in the order of the file.
    pub fn to_tensors(&self) -> Vec<Tensor> {
        self.tensors.iter().map(|entry| tensor(self.data_start, entry)).collect()
    }
}

fn tensor(data_start: u64, entry: &TensorEntry) -> Tensor {
    let shape = entry.shape();
    let plain = entry.ty.dtype();
    // Blocks are bytes to all code but their decoder, as in Python's gguf package.
    let stored = match shape.split_last() {
        Some((columns, leading)) if plain.is_none() => {
            [leading, &[entry.ty.row_bytes(*columns).unwrap_or(0)]].concat()
        }
        _ => shape.clone(),
    };
    let weight = Part {
        dtype: plain.unwrap_or(Dtype::U8),
        shape: stored,
        offset: data_start.saturating_add(entry.offset),
        size_bytes: entry.size_bytes().unwrap_or(0),
    };
    Tensor {
        name: entry.name.clone(),
        dtype: entry.ty.as_str().to_owned(),
        quantisation: plain.is_none().then(|| Quantisation::of(Kind::Ggml(entry.ty))),
        shape,
        parts: Parts { weight, scale: None, bias: None, global_scale: None },
    }
}
