//! Linear layers on pooled hidden states, after which a text's embedding has other values or another length:
//! sentence-transformers' `Dense` modules, and `dense_2` and `dense_3` of a GGUF. They are small, so the host
//! computes them.

use lode_kernels::{Ops, Rows, Weight};
use serde::{Deserialize, Serialize};

use super::tensors::MappedTensors;
use crate::arch::Tensors;
use crate::arch::gguf::TensorLookup;
use crate::engine::{BlobFile, LoadError};

/// One layer: `activation(weight * x + bias)`.
pub struct Projection {
    /// `[out, in]`
    weight: Weight,
    /// `[out]`, or empty.
    bias: Vec<f32>,
    has_tanh: bool,
}

/// The form of a layer in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectionShape {
    pub in_features: usize,
    pub out_features: usize,
    pub has_bias: bool,
    /// Whether the activation is tanh; otherwise there is none.
    pub has_tanh: bool,
}

/// The names of the layers in a GGUF, in their order.
const GGUF_NAMES: [&str; 2] = ["dense_2.weight", "dense_3.weight"];

impl Projection {
    /// Reads a module's file, which has the tensors `linear.weight` and `linear.bias`.
    pub fn read(file: &BlobFile, shape: ProjectionShape) -> Result<Self, LoadError> {
        let mut tensors = MappedTensors::open(std::slice::from_ref(file))?;
        let weight = tensors.matrix("linear.weight", shape.out_features, shape.in_features)?;
        let mut bias = Vec::new();
        if shape.has_bias {
            let stored = tensors.vector("linear.bias", shape.out_features)?;
            bias.resize(shape.out_features, 0.0);
            Ops::scalar().decode_row(&Rows::of(&stored), 0, &mut bias);
        }
        Ok(Self { weight, bias, has_tanh: shape.has_tanh })
    }

    /// The layers of a GGUF: those of `GGUF_NAMES` that it has. A checkpoint has none here.
    pub(super) fn of_gguf(tensors: &mut MappedTensors) -> Result<Vec<Self>, LoadError> {
        let mut layers = Vec::new();
        if tensors.metadata().is_none() {
            return Ok(layers);
        }
        for name in GGUF_NAMES {
            let Some(shape) = tensors.shape(name) else { continue };
            // An error of `matrix` if the tensor is no matrix.
            let [rows, cols] = [0, 1].map(|at| shape.get(at).map_or(0, |n| *n as usize));
            let weight = tensors.matrix(name, rows, cols)?;
            layers.push(Self { weight, bias: Vec::new(), has_tanh: false });
        }
        Ok(layers)
    }

    pub fn in_features(&self) -> usize {
        self.weight.cols()
    }

    pub fn out_features(&self) -> usize {
        self.weight.rows()
    }

    /// Computes the layer for a vector of [`Projection::in_features`] values.
    pub fn apply(&self, ops: &Ops, vector: &[f32]) -> Vec<f32> {
        let mut out = ops.matmul(&self.weight, vector);
        out.iter_mut().zip(&self.bias).for_each(|(value, bias)| *value += bias);
        if self.has_tanh {
            out.iter_mut().for_each(|value| *value = value.tanh());
        }
        out
    }
}
