//! The safetensors files of a folder: which of them make up the checkpoint, and which tensors they hold.
//! As transformers does: what the index lists, else `model.safetensors`, else every safetensors file at the top, all their parts
//! there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::array::Scales;
use super::mlx::{self, Mlx};
use super::{ImportError, Source, SourceFile, read_file};
use crate::gguf::PartName;
use crate::safetensors::{Dtype, Header};
use crate::tensor::{self, Tensor, TensorError};

/// The index that transformers writes beside shards.
const MAIN_INDEX: &str = "model.safetensors.index.json";
const MAIN_FILE: &str = "model.safetensors";
const END: &str = ".safetensors";

/// Where it is said how weights were quantised.
pub(super) const CONFIG: &str = "config.json";

/// The file that makes a folder an image model, and the names under which its components are kept in one file.
pub(super) const IMAGE_INDEX: &str = "model_index.json";
const COMPONENT_FILES: [&str; 2] = ["model.safetensors", "diffusion_pytorch_model.safetensors"];

/// The files that the tensors come from.
pub(super) struct Checkpoint {
    pub(super) shards: Vec<Shard>,
    /// The shard index, where there is one.
    pub(super) index: Option<String>,
    /// Whether the shards belong to components, each in its folder, by which their tensors are called as well.
    pub(super) is_image_model: bool,
    /// The config.json, where it is an object.
    pub(super) config: Option<Map<String, Value>>,
    /// The scales of FP8 weights, by the weights' names, once [`super::fp8::fold`] took them out of the tensors.
    pub(super) scales: HashMap<String, Scales>,
    pub(super) notices: Vec<String>,
}

/// One safetensors file, its header read and checked.
pub(super) struct Shard {
    pub(super) path: Arc<str>,
    /// The file's first bytes as they are, length and padding included.
    pub(super) front: Vec<u8>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Ordered by where their weights lie. Offsets count from the start of the file.
    pub(super) tensors: Vec<Tensor>,
    /// Whether some tensors of the file are not among them any more.
    pub(super) is_changed: bool,
}

impl Checkpoint {
    /// Every tensor with the number of its shard.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        self.shards
            .iter()
            .enumerate()
            .flat_map(|(at, shard)| shard.tensors.iter().map(move |tensor| (at, tensor)))
    }

    /// The type of a tensor's values: of FP8 under scales the one that they are decoded to.
    pub(super) fn value_dtype(&self, tensor: &Tensor) -> Dtype {
        if self.scales.contains_key(&tensor.name) { Dtype::BF16 } else { tensor.parts.weight.dtype }
    }

    /// What is said of the whole: the quantisation of fewest bits, because a "4-bit" model keeps much at more; without any,
    /// the type that most elements have.
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

    let is_image_model = files.iter().any(|file| file.path == IMAGE_INDEX);
    let is_shard = |file: &SourceFile| match &index {
        _ if is_image_model => is_component(files, &file.path),
        Some((_, weight_map)) => weight_map.values().any(|shard| *shard == file.path),
        None if files.iter().any(|file| file.path == MAIN_FILE) => file.path == MAIN_FILE,
        None => !file.path.contains('/'),
    };
    let config = files.iter().find(|file| file.path == CONFIG);
    // What is no object is for others to refuse.
    let config = config.map(|file| read_file(source, file)).transpose()?;
    let config: Option<Map<String, Value>> = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let mlx = config.as_ref().and_then(Mlx::read);
    let mut shards = Vec::new();
    for file in files.iter().filter(|file| is_safetensors(file)) {
        // A header is checked even where the file is then stored whole: a damaged one should not go unseen.
        let mut shard = read_shard(source, file, mlx.as_ref(), &mut notices)?;
        if is_shard(file) {
            if is_image_model && let Some((component, _)) = file.path.rsplit_once('/') {
                shard
                    .tensors
                    .iter_mut()
                    .for_each(|tensor| tensor.name.insert_str(0, &format!("{component}/")));
            }
            shards.push(shard);
        } else {
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
        for (tensor, shard) in weight_map {
            let (index, tensor, shard) = (|| index.clone(), tensor.clone(), shard.clone());
            if !files.iter().any(|file| file.path == shard) {
                return Err(ImportError::MissingShard { index: index(), tensor, shard });
            }
            let is_there = homes.get(tensor.as_str()).is_some_and(|home| *home.path == *shard)
                || is_companion(&tensor, &homes);
            if !is_there {
                return Err(ImportError::MissingTensor { index: index(), tensor, shard });
            }
        }
    }
    drop(homes);
    let index = index.map(|(path, _)| path);
    Ok(Checkpoint { shards, index, is_image_model, config, scales: HashMap::new(), notices })
}

/// Whether a file holds a checkpoint's tensors, by its name.
pub(super) fn is_safetensors(file: &SourceFile) -> bool {
    file.path.to_ascii_lowercase().ends_with(END)
}

/// Without an index, names tell whether there is more of a model: half of one that goes in unseen is found out when it is run.
/// A file that comes alone is what was asked for.
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
        notices.push(format!("`{prefix}` is split over {count} files, and this is one of them alone"));
    }
    Ok(())
}

/// Whether a file of an image model is what its component is loaded from: in a folder, and no copy in fewer bits or of other
/// steps of training beside the file that counts.
fn is_component(files: &[SourceFile], path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    let beside = || {
        let inside = files.iter().filter_map(|file| file.path.rsplit_once('/'));
        inside
            .filter(|(other, name)| *other == folder && name.ends_with(".safetensors"))
            .map(|(_, name)| name)
    };
    if beside().any(|name| COMPONENT_FILES.contains(&name)) {
        return COMPONENT_FILES.contains(&name);
    }
    let is_variant = |name: &str| [".fp16", ".bf16", ".ema", "_ema"].iter().any(|mark| name.contains(mark));
    !is_variant(name) || beside().all(is_variant)
}

/// Whether a name is the scale or bias of a quantised tensor, which went in with it.
fn is_companion(name: &str, homes: &HashMap<&str, &Shard>) -> bool {
    let ours = [".scale", ".bias", ".global_scale"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let base = ours.map(str::to_owned).or_else(|| mlx::weight_of(name));
    base.and_then(|base| Some((homes.get(base.as_str())?, base)))
        .is_some_and(|(shard, base)| shard.tensors.iter().any(|t| t.name == base && t.quantisation.is_some()))
}

fn read_shard(
    source: &dyn Source,
    file: &SourceFile,
    mlx: Option<&Mlx>,
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
            if renamed.foreign > 0 {
                notices.push(format!(
                    "`{}`: {} quantised weights are none of int4, int8, nvfp4, mxfp4 and mxfp8, and stored as they are",
                    file.path, renamed.foreign
                ));
            }
            renamed.header
        }
        Err(source) => return Err(ImportError::Header { path: path(), source }),
    };
    let tensors = match tensor::read_blob(None, &header) {
        Ok(tensors) => tensors,
        // Words with a scale beside them, but nothing says that they are ours: ordinary tensors of someone else's format.
        Err(error @ TensorError::Ambiguous { .. }) => {
            notices.push(format!("`{}`: {error}; it is stored as it is", file.path));
            tensor::read_plain(&header)
        }
        Err(source) => return Err(ImportError::Tensor { path: path(), source }),
    };
    let metadata = header.metadata().clone();
    Ok(Shard { path: file.path.as_str().into(), front, metadata, tensors, is_changed: false })
}
