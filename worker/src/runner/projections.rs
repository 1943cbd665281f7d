//! The linear layers that a loaded model applies to pooled hidden states.

use lode_kernels::Ops;

use super::embedding::Dense;
use super::error_chain::format_error_chain;
use super::protocol::{ModelSpec, RunnerError};
use crate::engine::native::{Projection, ProjectionShape};
use crate::engine::{BlobFile, Format};

pub(super) struct Projections {
    layers: Vec<Projection>,
    ops: &'static Ops,
    /// Number of values in an embedding.
    width: usize,
}

impl Projections {
    /// `of_weights` are the layers among the model's tensors; those of a checkpoint are in files of their own.
    /// `width` is the length of a hidden state.
    pub(super) fn read(
        spec: &ModelSpec,
        of_weights: Vec<Projection>,
        dense: &[Dense],
        width: usize,
        ops: &'static Ops,
    ) -> Result<Self, RunnerError> {
        let mut projections = Self { layers: of_weights, ops, width };
        for layer in dense {
            let name = format!("{}/model.safetensors", layer.folder);
            let refused = |reason: String| RunnerError::unsupported(format!("{}: {reason}", spec.name));
            let file = spec.files.get(&name).ok_or_else(|| refused(format!("no file `{name}`")))?;
            let file = BlobFile {
                path: file.path.clone(),
                name: None,
                whole_file: true,
                format: Format::Safetensors,
                extent: file.extent,
            };
            let shape = ProjectionShape {
                in_features: layer.in_features,
                out_features: layer.out_features,
                has_bias: layer.has_bias,
                has_tanh: layer.has_tanh,
            };
            let read = Projection::read(&file, shape)
                .map_err(|error| refused(format!("`{name}`: {}", format_error_chain(&error))))?;
            projections.layers.push(read);
        }
        for layer in &projections.layers {
            if layer.in_features() != projections.width {
                return Err(RunnerError::unsupported(format!(
                    "{}: a linear layer after the pooling has {} inputs, expected {}",
                    spec.name,
                    layer.in_features(),
                    projections.width
                )));
            }
            projections.width = layer.out_features();
        }
        Ok(projections)
    }

    /// Number of values in an embedding.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The embedding of a text, from its pooled hidden states.
    pub(super) fn apply(&self, pooled: Vec<f32>) -> Vec<f32> {
        self.layers.iter().fold(pooled, |vector, layer| layer.apply(self.ops, &vector))
    }
}
