//! The tensors of a model's mapped files, by name: every header is checked before a byte of data is used.
//! The arch modules take them from here; what does not fit is refused with the tensor named.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use lode_model::quant;
use lode_model::safetensors::{Dtype as StoredDtype, Header};
use lode_model::tensor::{Part, Tensor, read_blob};

use super::map::map;
use crate::arch::Tensors;
use crate::engine::{BlobFile, Extent, LoadError};
use crate::kernels::{Dtype, Float, Weight};

/// Mapped files and where each tensor lies in them.
pub(super) struct Mapped {
    tensors: BTreeMap<String, Entry>,
    files: Vec<(PathBuf, Bytes)>,
    taken_bytes: u64,
}

struct Entry {
    file: usize,
    tensor: Tensor,
}

impl Mapped {
    pub(super) fn open(files: &[BlobFile]) -> Result<Self, LoadError> {
        let mut mapped = Self { tensors: BTreeMap::new(), files: Vec::new(), taken_bytes: 0 };
        for file in files {
            let path = file.path.clone();
            let cut = |bytes: Bytes| match file.extent {
                Some(Extent { offset, size }) => part(&bytes, offset, size).ok_or_else(|| {
                    io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before the file in it does")
                }),
                None => Ok(bytes),
            };
            let bytes =
                map(&path).and_then(cut).map_err(|source| LoadError::File { path: path.clone(), source })?;
            // A file of its own names its tensors itself, also one named `data`.
            let layer_name = if file.whole_file { None } else { file.name.as_deref() };
            let tensors = read(layer_name, &bytes)
                .map_err(|reason| LoadError::Header { path: path.clone(), reason })?;
            mapped.files.push((path, bytes));
            for tensor in tensors {
                mapped.add(tensor)?;
            }
        }
        Ok(mapped)
    }

    /// Adds a tensor of the file mapped last.
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

    /// Bytes of the tensors taken so far.
    pub(super) fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    fn take(&mut self, name: &str, expected: &[u64]) -> Result<Weight, LoadError> {
        let entry =
            self.tensors.get(name).ok_or_else(|| LoadError::MissingTensor { name: name.to_owned() })?;
        let Entry { file, tensor } = entry;
        if tensor.shape != expected {
            let (expected, found) = (expected.to_vec(), tensor.shape.clone());
            return Err(LoadError::TensorShape { name: name.to_owned(), expected, found });
        }
        let weight = weight(tensor, &self.files[*file].1)?;
        self.taken_bytes += weight.size_bytes();
        Ok(weight)
    }
}

impl Tensors for Mapped {
    fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, LoadError> {
        self.take(name, &[rows as u64, cols as u64])
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Weight, LoadError> {
        self.take(name, &[len as u64])
    }
}

fn read(layer_name: Option<&str>, bytes: &[u8]) -> Result<Vec<Tensor>, String> {
    let text = |error: &dyn std::error::Error| {
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    };
    let header = Header::read(bytes).map_err(|e| text(&e))?;
    read_blob(layer_name, &header).map_err(|e| text(&e))
}

/// A run of bytes of a file, still in the file.
fn part(file: &Bytes, offset: u64, size: u64) -> Option<Bytes> {
    let begin = usize::try_from(offset).ok()?;
    let end = begin.checked_add(usize::try_from(size).ok()?).filter(|end| *end <= file.len())?;
    Some(file.slice(begin..end))
}

/// The tensor as the kernels take it, its bytes still in the file.
fn weight(tensor: &Tensor, file: &Bytes) -> Result<Weight, LoadError> {
    let name = || tensor.name.clone();
    let refused = || LoadError::TensorDtype { name: name(), dtype: tensor.dtype.clone() };
    let data = |reason: String| LoadError::TensorData { name: name(), reason };
    let slice = |piece: &Part| {
        let bytes = part(file, piece.offset, piece.size_bytes);
        bytes.ok_or_else(|| data("it ends after its file".into()))
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
    let Some(quantisation) = &tensor.quantisation else {
        let float = float(tensor.parts.weight.dtype).ok_or_else(refused)?;
        return Weight::floats(float, shape, codes).map_err(|e| data(e.to_string()));
    };
    let bits = match quantisation.kind {
        quant::Kind::Int4 => 4,
        quant::Kind::Int8 => 8,
        _ => return Err(refused()),
    };
    let (Some(scale), Some(bias)) = (&tensor.parts.scale, &tensor.parts.bias) else {
        return Err(data("its scales or biases are missing".into()));
    };
    let scales =
        float(scale.dtype).filter(|float| Some(*float) == self::float(bias.dtype)).ok_or_else(refused)?;
    let dtype = Dtype::Affine { bits, group: quantisation.group_size as usize, scales };
    Weight::new(dtype, shape, codes, slice(scale)?, slice(bias)?).map_err(|e| data(e.to_string()))
}

fn float(dtype: StoredDtype) -> Option<Float> {
    match dtype {
        StoredDtype::F32 => Some(Float::F32),
        StoredDtype::F16 => Some(Float::F16),
        StoredDtype::BF16 => Some(Float::BF16),
        _ => None,
    }
}
