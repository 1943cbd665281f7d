//! Chooses the engine of a model by the format of its files, here only.

use super::{BlobFile, Engine, Format, LoadError, LoadOptions, ModelFiles, native, ort};

/// Opens a model with the engine for the format of its files. What the engine does not support is refused.
pub fn open(files: &ModelFiles) -> Result<OpenModel, LoadError> {
    let is_onnx = |file: &BlobFile| matches!(file.format, Format::Onnx | Format::OnnxData);
    match files.tensors.iter().any(is_onnx) {
        true => ort::open(files).map(OpenModel::Ort),
        false => native::open(files).map(|model| OpenModel::Native(Box::new(model))),
    }
}

/// A model that is supported according to its configuration and the headers of its files.
pub enum OpenModel {
    Native(Box<native::OpenModel>),
    Ort(ort::OpenModel),
}

impl OpenModel {
    /// The layers in the model's files that follow the pooling of a text's hidden states.
    pub fn projections(&mut self) -> Result<Vec<native::Projection>, LoadError> {
        match self {
            OpenModel::Native(model) => model.projections(),
            OpenModel::Ort(_) => Ok(Vec::new()),
        }
    }

    /// Loads it onto the device of the options. ONNX models are computed on the CPU if the ONNX Runtime cannot use the
    /// GPU.
    pub fn load(self, options: LoadOptions) -> Result<Box<dyn Engine>, LoadError> {
        match self {
            OpenModel::Native(model) => model.load(options),
            OpenModel::Ort(model) => model.load(options),
        }
    }
}
