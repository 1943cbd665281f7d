//! The safetensors files of a folder: which of them make up the checkpoint, and which tensors they hold. As
//! in transformers, these are the files that the index lists, else `model.safetensors`, else every
//! safetensors file at the top level, of which no part may be missing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ImportError;
use super::files::{CONFIG, HeaderBudget, read_file};
use super::mlx::{self, MlxQuantisation};
use crate::convert::Segment;
use crate::formats::weight_format::WeightFormat;
use crate::gguf::PartName;
use crate::quant::Kind;
use crate::recognise::is_dense_module;
use crate::safetensors::{Dtype, Header};
use crate::source::{Scales, Source, SourceFile};
use crate::tensor::{self, Tensor, TensorError};

/// The index that transformers writes for shards.
pub(super) const MAIN_INDEX: &str = "model.safetensors.index.json";
pub(super) const MAIN_FILE: &str = "model.safetensors";
const END: &str = ".safetensors";

/// Limit for the headers of all files together, in bytes. They have about 100 bytes per tensor.
const MAX_HEADERS_BYTES: u64 = 128 << 20;

/// The file that marks a folder as an image model, and the file names of components that are stored in one
/// file.
pub(super) const IMAGE_INDEX: &str = "model_index.json";
const COMPONENT_FILES: [&str; 2] = ["model.safetensors", "diffusion_pytorch_model.safetensors"];

/// The files that the tensors come from.
pub(super) struct Checkpoint {
    pub(super) shards: Vec<Shard>,
    /// The shard index, if there is one.
    pub(super) index: Option<String>,
    /// Whether the shards belong to components. Each component has a folder, which prefixes the names of its
    /// tensors.
    pub(super) is_image_model: bool,
    /// The config.json, if it is an object.
    pub(super) config: Option<Map<String, Value>>,
    /// The scales of FP8 and int8 weights by the weights' names, after [`super::scaled::pair_scales`] has
    /// removed them from the tensors.
    pub(super) scales: HashMap<String, Scales>,
    /// The bytes of the tensors that are converted from another file, by their names.
    pub(super) converted: HashMap<String, Segment>,
    pub(super) notices: Vec<String>,
}

/// One safetensors file with its checked header.
pub(super) struct Shard {
    pub(super) path: Arc<str>,
    /// The file's first bytes as stored, including the length and the padding.
    pub(super) front: Vec<u8>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Ordered by the offset of their weights. Offsets count from the start of the file.
    pub(super) tensors: Vec<Tensor>,
    /// Whether some tensors of the file have been removed from the list.
    pub(super) is_changed: bool,
}

impl Checkpoint {
    /// Returns every tensor with the number of its shard.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        self.shards
            .iter()
            .enumerate()
            .flat_map(|(at, shard)| shard.tensors.iter().map(move |tensor| (at, tensor)))
    }

    /// The type of a tensor's values: for codes with scales, the type that they are decoded to.
    pub(super) fn value_dtype(&self, tensor: &Tensor) -> Dtype {
        if self.scales.contains_key(&tensor.name) { Dtype::BF16 } else { tensor.parts.weight.dtype }
    }

    /// The type that describes the whole model: the quantisation with the fewest bits, because a "4-bit"
    /// model keeps many tensors at more bits; without any, the type that most elements have.
    pub(super) fn main_dtype(&self) -> Option<String> {
        let kinds = self
            .tensors()
            .filter_map(|(_, tensor)| tensor.quantisation)
            .map(|quantisation| quantisation.kind);
        if let Some(kind) = kinds.min_by_key(|kind| (kind.bits(), *kind)) {
            return Some(kind.to_string());
        }
        let mut elements = BTreeMap::<String, u64>::new();
        for (_, tensor) in self.tensors() {
            *elements.entry(self.value_dtype(tensor).to_string()).or_default() += tensor.elements();
        }
        elements.into_iter().max_by_key(|(_, elements)| *elements).map(|(dtype, _)| dtype)
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

pub(super) fn read(source: &dyn Source, files: &[SourceFile]) -> Result<Checkpoint, ImportError> {
    read_within(source, files, HeaderBudget::new(MAX_HEADERS_BYTES))
}

fn read_within(
    source: &dyn Source,
    files: &[SourceFile],
    mut budget: HeaderBudget,
) -> Result<Checkpoint, ImportError> {
    let at_top = |suffix: &'static str| {
        files.iter().filter(move |file| file.path.ends_with(suffix) && !file.path.contains('/'))
    };
    let mut notices = Vec::new();
    let index_file = at_top(".safetensors.index.json")
        .find(|file| file.path == MAIN_INDEX)
        .or_else(|| at_top(".safetensors.index.json").next());
    let index = match index_file {
        Some(file) => {
            let parsed = serde_json::from_slice::<Index>(&read_file(source, file)?);
            let parsed = parsed.map_err(|source| ImportError::Json { path: file.path.clone(), source })?;
            Some((file.path.clone(), parsed.weight_map))
        }
        None => None,
    };

    // Sets, because an untrusted folder may have very many files, and an index very many tensors.
    let paths: HashSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let indexed: Option<HashSet<&str>> =
        index.as_ref().map(|(_, weight_map)| weight_map.values().map(String::as_str).collect());
    let is_image_model = paths.contains(IMAGE_INDEX);
    let has_main_file = paths.contains(MAIN_FILE);
    let components = Components::new(files);
    let is_shard = |file: &SourceFile| match &indexed {
        _ if is_image_model => components.contains(&file.path),
        Some(shards) => shards.contains(file.path.as_str()),
        None if has_main_file => file.path == MAIN_FILE,
        None => !file.path.contains('/'),
    };
    let config = files.iter().find(|file| file.path == CONFIG);
    // A config.json that is not an object is refused elsewhere.
    let config = config.map(|file| read_file(source, file)).transpose()?;
    let config: Option<Map<String, Value>> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let mlx = config.as_ref().and_then(MlxQuantisation::read);
    let mut shards = Vec::new();
    for file in files.iter().filter(|file| file.weight_format() == Some(WeightFormat::Safetensors)) {
        // Headers are checked even if the file is stored whole, so that damage does not go unnoticed.
        let mut shard = read_shard(source, file, mlx.as_ref(), &mut notices)?;
        if is_shard(file) {
            budget.take(&file.path, shard.front.len() as u64)?;
            if is_image_model && let Some((component, _)) = file.path.rsplit_once('/') {
                shard
                    .tensors
                    .iter_mut()
                    .for_each(|tensor| tensor.name.insert_str(0, &format!("{component}/")));
            }
            shards.push(shard);
        } else if !is_dense_module(&file.path) {
            notices.push(format!("`{}` is not part of the checkpoint and is stored whole", file.path));
        }
    }

    if index.is_none() {
        check_parts(&shards, files.len() == 1, &mut notices)?;
    }

    let mut homes: HashMap<&str, &Shard> = HashMap::new();
    for shard in &shards {
        for name in shard.tensors.iter().map(|tensor| tensor.name.as_str()) {
            if let Some(first) = homes.insert(name, shard) {
                return Err(ImportError::DuplicateTensor {
                    tensor: name.to_owned(),
                    first: first.path.to_string(),
                    second: shard.path.to_string(),
                });
            }
        }
    }
    if let Some((index, weight_map)) = &index {
        let tensors = shards.iter().flat_map(|shard| &shard.tensors);
        let quantised: HashSet<&str> = tensors
            .filter(|tensor| tensor.quantisation.is_some())
            .map(|tensor| tensor.name.as_str())
            .collect();
        for (tensor, shard) in weight_map {
            let (index, tensor, shard) = (|| index.clone(), tensor.clone(), shard.clone());
            if !paths.contains(shard.as_str()) {
                return Err(ImportError::MissingShard { index: index(), tensor, shard });
            }
            let is_there = homes.get(tensor.as_str()).is_some_and(|home| *home.path == *shard)
                || is_companion(&tensor, &quantised);
            if !is_there {
                return Err(ImportError::MissingTensor { index: index(), tensor, shard });
            }
        }
    }
    drop(homes);
    let index = index.map(|(path, _)| path);
    Ok(Checkpoint {
        shards,
        index,
        is_image_model,
        config,
        scales: HashMap::new(),
        converted: HashMap::new(),
        notices,
    })
}

/// Checks that no part of a model is missing. Without an index, only file names tell; otherwise an incomplete
/// model would fail only when it is run. A file that is imported alone was requested as such and only gets a
/// notice.
fn check_parts(shards: &[Shard], is_alone: bool, notices: &mut Vec<String>) -> Result<(), ImportError> {
    let mut numbers: BTreeMap<(&str, u32), BTreeSet<u32>> = BTreeMap::new();
    for part in shards.iter().filter_map(|shard| PartName::parse_as(&shard.path, END)) {
        numbers.entry((part.prefix, part.count)).or_default().insert(part.number);
    }
    for ((prefix, count), there) in numbers {
        let Some(number) = (1..=count).find(|number| !there.contains(number)) else { continue };
        if !is_alone {
            return Err(ImportError::MissingPart { prefix: prefix.to_owned(), count, number });
        }
        notices.push(format!("`{prefix}` is split over {count} files, and this is only one of them"));
    }
    Ok(())
}

/// The folders of an image model, by the safetensors files in them.
struct Components<'a> {
    /// The folders with a main file.
    with_main: HashSet<&'a str>,
    /// The folders with a file that is not a variant.
    with_plain: HashSet<&'a str>,
}

impl<'a> Components<'a> {
    fn new(files: &'a [SourceFile]) -> Components<'a> {
        let mut components = Components { with_main: HashSet::new(), with_plain: HashSet::new() };
        let inside = files.iter().filter_map(|file| file.path.rsplit_once('/'));
        for (folder, name) in inside.filter(|(_, name)| name.ends_with(".safetensors")) {
            if COMPONENT_FILES.contains(&name) {
                components.with_main.insert(folder);
            }
            if !is_variant(name) {
                components.with_plain.insert(folder);
            }
        }
        components
    }

    /// Whether a component is loaded from this file: it is in a folder, and it is not a variant of the
    /// folder's main file.
    fn contains(&self, path: &str) -> bool {
        let Some((folder, name)) = path.rsplit_once('/') else { return false };
        if self.with_main.contains(folder) {
            return COMPONENT_FILES.contains(&name);
        }
        !is_variant(name) || !self.with_plain.contains(folder)
    }
}

/// Whether a file name is that of a variant: fewer bits, or another training step.
fn is_variant(name: &str) -> bool {
    [".fp16", ".bf16", ".ema", "_ema"].iter().any(|mark| name.contains(mark))
}

/// Whether a name is the scale or bias of a quantised tensor, which includes it.
fn is_companion(name: &str, quantised: &HashSet<&str>) -> bool {
    let ours = [".scale", ".bias", ".global_scale"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let base = ours.map(str::to_owned).or_else(|| mlx::weight_of(name));
    base.is_some_and(|base| quantised.contains(base.as_str()))
}

fn read_shard(
    source: &dyn Source,
    file: &SourceFile,
    mlx: Option<&MlxQuantisation>,
    notices: &mut Vec<String>,
) -> Result<Shard, ImportError> {
    let path = || file.path.clone();
    let unreadable = |source| ImportError::Read { path: path(), source };
    let opened = source.open(&file.path).map_err(unreadable)?;
    let header = Header::read(&*opened).map_err(|source| ImportError::Header { path: path(), source })?;
    let mut front = vec![0; header.data_start() as usize];
    opened.read_at(0, &mut front).map_err(unreadable)?;
    let header = match mlx.map(|mlx| mlx.rename(&header)).transpose() {
        Ok(None) => header,
        Ok(Some(renamed)) => {
            if renamed.unsupported > 0 {
                notices.push(format!(
                    "`{}`: {} weights are quantised to other formats than {}, and stored as they are",
                    file.path,
                    renamed.unsupported,
                    Kind::list_blob_kinds("and")
                ));
            }
            renamed.header
        }
        Err(source) => return Err(ImportError::Header { path: path(), source }),
    };
    let tensors = match tensor::read_blob(None, &header) {
        Ok(tensors) => tensors,
        // U32 tensors with scales, but no metadata that marks them as Lode's: ordinary tensors of another
        // tool's format.
        Err(error @ TensorError::Ambiguous { .. }) => {
            notices.push(format!("`{}`: {error}; it is stored as it is", file.path));
            tensor::read_plain(&header)
        }
        Err(source) => return Err(ImportError::Tensor { path: path(), source }),
    };
    let metadata = header.metadata().clone();
    Ok(Shard { path: file.path.as_str().into(), front, metadata, tensors, is_changed: false })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Folder, safetensors};
    use super::*;

    #[test]
    fn the_headers_of_all_shards_have_a_limit() {
        let shard = |name: &str| safetensors(&[(name, Dtype::BF16, &[2])]);
        let folder = Folder::default()
            .with("a.safetensors", shard("a.weight"))
            .with("b.safetensors", shard("b.weight"))
            .with("other/c.safetensors", shard("c.weight"));
        let mut files = folder.files();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let header_bytes = shard("a.weight").len() as u64 - 4;
        let read = |limit| read_within(&folder, &files, HeaderBudget::new(limit));
        // Files that are stored whole do not count: their headers are not kept.
        assert_eq!(read(2 * header_bytes).unwrap().shards.len(), 2);
        let error = read(2 * header_bytes - 1).err().unwrap().to_string();
        assert!(error.contains("the headers of the files up to `b.safetensors`"), "{error}");
    }
}
