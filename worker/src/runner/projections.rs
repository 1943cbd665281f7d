//! The linear layers that a loaded model applies to pooled hidden states.

use lode_kernels::Ops;
use lode_model::error_chain;

use super::embedding::Dense;
use super::protocol::{ModelSpec, RunnerError};
use crate::engine::native::Projection;
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
            let read = Projection::read(&file, layer.shape)
                .map_err(|error| refused(format!("`{name}`: {}", error_chain(&error))))?;
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

    /// The embedding of a text, from its pooled hidden states.
    pub(super) fn apply(&self, pooled: Vec<f32>) -> Vec<f32> {
        self.layers.iter().fold(pooled, |vector, layer| layer.apply(self.ops, &vector))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::embedding::Embedding;
    use super::super::protocol::SmallFile;
    use super::*;

    /// The model of a fixture, with the files that its layers need.
    fn model() -> (ModelSpec, Vec<Dense>) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/encoder/embedding-gemma");
        let names = ["modules.json", "2_Dense/config.json", "3_Dense/config.json"];
        let weights = ["2_Dense/model.safetensors", "3_Dense/model.safetensors"];
        let file = |name: &str| (name.to_owned(), SmallFile::from(folder.join(name)));
        let spec = ModelSpec {
            name: "m".to_owned(),
            files: names.iter().chain(&weights).map(|name| file(name)).collect(),
            ..ModelSpec::default()
        };
        let dense = Embedding::of_checkpoint(&spec).map_err(|error| error.message).unwrap().dense;
        (spec, dense)
    }

    fn refused(spec: &ModelSpec, dense: &[Dense], width: usize) -> String {
        let read = Projections::read(spec, Vec::new(), dense, width, Ops::scalar());
        read.err().expect("an error").message
    }

    #[test]
    fn layers_must_fit_each_other_and_their_files() {
        let (spec, dense) = model();
        let projections = Projections::read(&spec, Vec::new(), &dense, 48, Ops::scalar());
        let projections = projections.map_err(|error| error.message).unwrap();
        let embedding = projections.apply(vec![0.5; 48]);
        assert_eq!((projections.width(), embedding.len()), (48, 48));
        // The last layer has tanh.
        assert!(embedding.iter().all(|value| value.abs() <= 1.0));

        let inputs = "a linear layer after the pooling has";
        assert_eq!(refused(&spec, &dense, 40), format!("m: {inputs} 48 inputs, expected 40"));
        assert_eq!(refused(&spec, &dense[1..], 48), format!("m: {inputs} 56 inputs, expected 48"));
        let mut wide = dense.clone();
        wide[0].shape.out_features = 57;
        let error = refused(&spec, &wide, 48);
        assert!(
            error.contains("`2_Dense/model.safetensors`: tensor `linear.weight` has shape [56, 48]"),
            "{error}"
        );
        let mut biased = dense.clone();
        biased[0].shape.has_bias = true;
        let error = refused(&spec, &biased, 48);
        assert!(error.contains("tensor `linear.bias` is missing"), "{error}");
        let mut without = spec.clone();
        without.files.remove("3_Dense/model.safetensors");
        assert_eq!(refused(&without, &dense, 48), "m: no file `3_Dense/model.safetensors`");
    }
}
