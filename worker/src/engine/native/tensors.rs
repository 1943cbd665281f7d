//! The tensors of a model's mapped files, by the names of its checkpoint. Every header is checked before any
//! data is used. Errors name a tensor as its file does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use lode_model::error_chain;
use lode_model::gguf::{self, Metadata};
use lode_model::quant::ggml;
use lode_model::safetensors::Header;
use lode_model::tensor::scaled::{self, BlockError};
use lode_model::tensor::{Part, Tensor, read_blob};

use super::parts;
use crate::arch::gguf::{TensorLocation, TensorLookup, locate_tensor};
use crate::arch::{Config, ConfigError, Tensors};
use crate::engine::map::{map, prefault};
use crate::engine::{BlobFile, Format, LoadError};
use lode_kernels::{Dtype, Float, Weight};

/// Mapped files and the location of each tensor in them.
pub(super) struct MappedTensors {
    pub(super) tensors: BTreeMap<String, Entry>,
    pub(super) files: Vec<(PathBuf, Bytes)>,
    /// The metadata of a GGUF, whose tensors have different names.
    metadata: Option<Arc<Metadata>>,
    /// The rows and columns that share a scale in weights of FP8 or int8.
    pub(super) scale_block: Result<[u64; 2], BlockError>,
    taken_bytes: u64,
}

/// Maximum length of a table that is decoded whole, such as rotary factors or a scale per expert.
const MAX_TABLE: u64 = 1 << 16;

pub(super) struct Entry {
    pub(super) file: usize,
    pub(super) tensor: Tensor,
}

impl MappedTensors {
    pub(super) fn open(files: &[BlobFile]) -> Result<Self, LoadError> {
        let mut mapped = Self {
            tensors: BTreeMap::new(),
            files: Vec::new(),
            metadata: None,
            scale_block: scaled::block(None),
            taken_bytes: 0,
        };
        let (mut headers, mut ahead) = (Vec::new(), Vec::new());
        for file in files {
            let path = file.path.clone();
            let (bytes, part) =
                map(&path, file.extent).map_err(|source| LoadError::File { path: path.clone(), source })?;
            ahead.push(part);
            // In a whole file the tensors have their own names, even one named `data`.
            let layer_name = if file.whole_file { None } else { file.name.as_deref() };
            let tensors = match file.format {
                Format::Safetensors => read(layer_name, &bytes),
                Format::Gguf => gguf::Header::parse(&bytes, bytes.len() as u64)
                    .map(|header| {
                        let tensors = header.to_tensors();
                        headers.push((path.clone(), header));
                        tensors
                    })
                    .map_err(|error| error.to_string()),
                Format::Onnx | Format::OnnxData => Err("ONNX files have an engine of their own".to_owned()),
            };
            let tensors = tensors.map_err(|reason| LoadError::Header { path: path.clone(), reason })?;
            mapped.files.push((path, bytes));
            for tensor in tensors {
                mapped.add(tensor)?;
            }
        }
        mapped.metadata = parts::join(headers)?.map(Arc::new);
        prefault(ahead);
        Ok(mapped)
    }

    /// Sets the blocks that the configuration gives.
    pub(super) fn with_scale_block(self, scale_block: Result<[u64; 2], BlockError>) -> Self {
        Self { scale_block, ..self }
    }

    pub(super) fn metadata(&self) -> Option<Arc<Metadata>> {
        self.metadata.clone()
    }

    /// The configuration from a GGUF's metadata; `None` for a checkpoint.
    pub(super) fn config(&self) -> Result<Option<Config>, LoadError> {
        let Some(metadata) = &self.metadata else { return Ok(None) };
        let config = crate::arch::gguf::config(metadata, self).map_err(LoadError::Metadata)?;
        Ok(Some(Config::from_gguf(config)))
    }

    /// Adds a tensor of the last mapped file.
    fn add(&mut self, tensor: Tensor) -> Result<(), LoadError> {
        let file = self.files.len() - 1;
        if let Some(first) = self.tensors.get(&tensor.name) {
            let path = |file: usize| self.files[file].0.clone();
            return Err(LoadError::DuplicateTensor {
                name: tensor.name,
                first: path(first.file),
                second: path(file),
            });
        }
        self.tensors.insert(tensor.name.clone(), Entry { file, tensor });
        Ok(())
    }

    /// Total size of the tensors read so far.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Finds a tensor by its name in a checkpoint, and the index of an expert in a stacked tensor.
    fn find(&self, name: &str) -> (TensorLocation, Option<&Entry>) {
        if let Some(metadata) = &self.metadata {
            let place = locate_tensor(metadata.architecture().unwrap_or_default(), name);
            if let (None, Some(alone)) = (self.tensors.get(&place.name), place.as_separate_tensor())
                && let Some(entry) = self.tensors.get(&alone.name)
            {
                return (alone, Some(entry));
            }
            let entry = self.tensors.get(&place.name);
            return (place, entry);
        }
        let own = TensorLocation { name: name.to_owned(), expert: None };
        match (self.tensors.get(name), stacked(name)) {
            (None, Some(place)) if self.tensors.contains_key(&place.name) => {
                let entry = self.tensors.get(&place.name);
                (place, entry)
            }
            (entry, _) => (own, entry),
        }
    }

    fn take(&mut self, name: &str, expected: &[u64]) -> Result<Weight, LoadError> {
        let (TensorLocation { name, expert }, entry) = self.find(name);
        let entry = entry.ok_or_else(|| LoadError::MissingTensor { name: name.clone() })?;
        let Entry { file, tensor } = entry;
        let bytes = &self.files[*file].1;
        let (mut cut, mut first_row) = (None, 0);
        let rows = expected.iter().rev().skip(1).product();
        if let Some(expert) = expert {
            let is_stack =
                tensor.shape.split_first().is_some_and(|(n, each)| *n > expert && each == expected);
            first_row = expert.saturating_mul(rows);
            cut = is_stack.then(|| tensor.rows(first_row, rows)).flatten();
            if cut.is_none() {
                let expected = [&[expert + 1], expected].concat();
                return Err(LoadError::TensorShape { name, expected, found: tensor.shape.clone() });
            }
        } else if tensor.shape != expected && !is_single_row(&tensor.shape, expected) {
            let (expected, found) = (expected.to_vec(), tensor.shape.clone());
            return Err(LoadError::TensorShape { name, expected, found });
        }
        let mut weight = match self.scaled(entry, first_row, rows)? {
            Some(weight) => weight,
            None => weight(cut.as_ref().unwrap_or(tensor), bytes)?,
        };
        if weight.dtype() == Dtype::Ggml(ggml::Type::NVFP4) {
            weight = weight.with_factor(self.factor(&name, expert.unwrap_or(0))?);
        }
        self.taken_bytes += weight.size_bytes();
        Ok(weight)
    }

    /// The additional scale of an NVFP4 tensor in a GGUF: one for the whole tensor or one per expert.
    fn factor(&self, name: &str, expert: u64) -> Result<f32, LoadError> {
        let short = name.strip_suffix(".weight").unwrap_or(name);
        let names = [format!("{short}.scale"), format!("{name}.scale")];
        let Some(name) = names.iter().find(|name| self.tensors.contains_key(*name)) else { return Ok(1.0) };
        let factors = self.table(name).map_err(LoadError::Metadata)?.unwrap_or_default();
        let at = if factors.len() == 1 { 0 } else { usize::try_from(expert).unwrap_or(usize::MAX) };
        factors.get(at).copied().filter(|factor| factor.is_finite()).ok_or_else(|| {
            let reason = "it is not a valid scale".to_owned();
            LoadError::TensorData { name: name.clone(), reason }
        })
    }
}

/// Whether a matrix of one row is stored with one dimension, as converters to GGUF do.
fn is_single_row(found: &[u64], expected: &[u64]) -> bool {
    matches!((found, expected), ([len], [1, cols]) if len == cols)
}

/// The stacked tensor that may contain an expert: the same name without the expert's number.
fn stacked(name: &str) -> Option<TensorLocation> {
    let (before, after) = name.split_once(".experts.")?;
    let (expert, rest) = after.split_once('.')?;
    Some(TensorLocation { name: format!("{before}.experts.{rest}"), expert: Some(expert.parse().ok()?) })
}

impl TensorLookup for MappedTensors {
    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        self.tensors.get(name).map(|entry| entry.tensor.shape.clone())
    }

    fn table(&self, name: &str) -> Result<Option<Vec<f32>>, ConfigError> {
        let Some(Entry { file, tensor }) = self.tensors.get(name) else { return Ok(None) };
        let wrong = |found: String| {
            let expected = "a table of at most 65536 numbers";
            Err(ConfigError::Type { field: name.to_owned(), found, expected })
        };
        if tensor.elements() > MAX_TABLE {
            return wrong(format!("{:?}", tensor.shape));
        }
        tensor.decode_f32(&self.files[*file].1).map(Some).or_else(|error| wrong(error.to_string()))
    }
}

impl Tensors for MappedTensors {
    fn has(&self, name: &str) -> bool {
        self.find(name).1.is_some()
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, LoadError> {
        self.take(name, &[rows as u64, cols as u64])
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Weight, LoadError> {
        self.take(name, &[len as u64])
    }
}

fn read(layer_name: Option<&str>, bytes: &[u8]) -> Result<Vec<Tensor>, String> {
    let header = Header::read(bytes).map_err(|error| error_chain(&error))?;
    read_blob(layer_name, &header).map_err(|error| error_chain(&error))
}

/// A byte range of a file, not copied.
pub(super) fn part(file: &Bytes, offset: u64, size: u64) -> Option<Bytes> {
    let begin = usize::try_from(offset).ok()?;
    let end = begin.checked_add(usize::try_from(size).ok()?).filter(|end| *end <= file.len())?;
    Some(file.slice(begin..end))
}

/// Converts a tensor to a kernel weight without copying its bytes.
fn weight(tensor: &Tensor, file: &Bytes) -> Result<Weight, LoadError> {
    let name = || tensor.name.clone();
    let refused = || LoadError::TensorDtype { name: name(), dtype: tensor.dtype.clone() };
    let data = |reason: String| LoadError::TensorData { name: name(), reason };
    let slice = |piece: &Part| {
        let bytes = part(file, piece.offset, piece.size_bytes);
        bytes.ok_or_else(|| data("its data is beyond the end of the file".into()))
    };
    let (rows, cols) = match tensor.shape.as_slice() {
        [cols] => (1, *cols),
        [rows, cols] => (*rows, *cols),
        _ => return Err(data(format!("it has {} dimensions", tensor.shape.len()))),
    };
    let too_large = || data("its shape is too large".into());
    let shape =
        (usize::try_from(rows).map_err(|_| too_large())?, usize::try_from(cols).map_err(|_| too_large())?);

    let codes = slice(&tensor.parts.weight)?;
    let parts = &tensor.parts;
    let Some(quantisation) = &tensor.quantisation else {
        let float = Float::of(parts.weight.dtype).ok_or_else(refused)?;
        return Weight::floats(float, shape, codes).map_err(|e| data(e.to_string()));
    };
    if quantisation.kind.is_affine() && (parts.scale.is_none() || parts.bias.is_none()) {
        return Err(data("its scales or biases are missing".into()));
    }
    let float = |part: &Option<Part>| part.as_ref().and_then(|part| Float::of(part.dtype));
    let scales = float(&parts.scale).filter(|scales| float(&parts.bias) == Some(*scales));
    let dtype = Dtype::of(quantisation, scales).ok_or_else(refused)?;
    let separate = |part: &Option<Part>| match part {
        Some(part) => slice(part),
        None => Err(data("its scales are missing".into())),
    };
    let (scales, biases) = match dtype {
        Dtype::Affine { .. } => (separate(&parts.scale)?, separate(&parts.bias)?),
        Dtype::Scaled(_) => (separate(&parts.scale)?, Bytes::new()),
        Dtype::Float(_) | Dtype::ByteCodes { .. } | Dtype::Ggml(_) => (Bytes::new(), Bytes::new()),
    };
    let weight = Weight::new(dtype, shape, codes, scales, biases).map_err(|e| data(e.to_string()))?;
    let (Dtype::Scaled(_), Some(global)) = (dtype, &parts.global_scale) else { return Ok(weight) };
    let global = slice(global)?;
    let factor = <[u8; 4]>::try_from(global.as_ref()).map(f32::from_le_bytes).ok();
    let factor = factor.filter(|factor| factor.is_finite());
    Ok(weight.with_factor(factor.ok_or_else(|| data("its global scale is not a finite number".into()))?))
}
