//! Imports that produce a checkpoint in place of a GGUF. Files that are not part of the GGUF are stored
//! unchanged.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use super::checkpoint::{Checkpoint, MAIN_FILE, MAIN_INDEX, Shard};
use super::error::ImportError;
use super::gguf::{GgufFiles, read_files};
use super::gguf_part::annotations;
use super::layer::Content;
use super::plan::Plan;
use super::whole_file::{push_assembled, push_side_files};
use super::{facts, place, policy};
use crate::config::format_parameter_count;
use crate::convert::{self, ConvertedCheckpoint, ConvertedTensor, FloatType};
use crate::formats::weight_format::WeightFormat;
use crate::gguf::Header;
use crate::media_type;
use crate::read_at::ReadAt;
use crate::safetensors::byte_size;
use crate::source::{Source, SourceFile};
use crate::tensor::{Part, Parts, Tensor};

/// The size at which a further file begins, in bytes, as transformers saves checkpoints.
const SHARD_BYTES: u64 = 5_000_000_000;

pub(super) fn plan(
    source: &dyn Source,
    files: &[SourceFile],
    float: Option<FloatType>,
) -> Result<Plan, ImportError> {
    let is_gguf = |file: &&SourceFile| file.weight_format() == Some(WeightFormat::Gguf);
    let (ggufs, rest): (Vec<_>, Vec<_>) = files.iter().partition(is_gguf);
    // 1. Of several forms of the weights, it is not clear which one is meant.
    if let Some(other) = rest.iter().find(|file| file.weight_format().is_some()) {
        return Err(ImportError::NotGguf { path: other.path.clone() });
    }
    let GgufFiles { models, projectors, adapters } = read_files(source, &ggufs)?;
    if let Some(part) = projectors.first().or(adapters.first()) {
        return Err(ImportError::NotAModel { path: part.file.path.clone() });
    }
    let mut models = models.into_iter();
    let model = models.next().ok_or(ImportError::NoModel)?;
    if let (Some(first), Some(second)) =
        (model.first(), models.next().and_then(|other| other.into_iter().next()))
    {
        let (first, second) = (first.file.path.clone(), second.file.path);
        return Err(ImportError::SeveralModels { first, second });
    }
    let annotations = model.first().map(|part| annotations(&part.header)).unwrap_or_default();
    let parts: Vec<(Arc<str>, Header)> =
        model.into_iter().map(|part| (part.file.path.into(), part.header)).collect();
    // 2. Convert it, and store the result as any checkpoint.
    let ConvertedCheckpoint { tensors, files: made, mut notices } =
        convert::from_gguf(source, &parts, float)?;
    let checkpoint = checkpoint(tensors);
    let made = MadeFiles(made);
    let listed = made.files();
    let facts = facts::read(&made, &listed, &checkpoint)?;
    notices.extend(facts.notices);
    notices.push(format!("`lode pull --to` will give a checkpoint, which replaces `{}`", parts[0].0));
    let (mut layers, mut recipes) =
        place::shards(&checkpoint, policy::plan_tensor_layers(&checkpoint, None)?);
    for (path, bytes) in made.0 {
        let content = Content::bytes(bytes);
        push_assembled(&mut layers, &mut recipes, media_type::OLLAMA_JSON, path, content);
    }
    let is_replaced = |file: &&&SourceFile| recipes.iter().any(|recipe| recipe.path == file.path);
    let rest: Vec<&SourceFile> = rest.iter().filter(|file| !is_replaced(file)).copied().collect();
    push_side_files(source, &mut layers, &mut recipes, &rest)?;
    recipes.sort_by(|a, b| a.path.cmp(&b.path));

    let tensors = checkpoint.tensors().count() as u64;
    let parameters =
        checkpoint.tensors().fold(0u64, |sum, (_, tensor)| sum.saturating_add(tensor.elements()));
    let mut config = facts.config;
    config.model_format = WeightFormat::Safetensors.as_str().to_owned();
    config.model_type = format_parameter_count(parameters);
    config.file_type = checkpoint.main_dtype().unwrap_or_default();
    Ok(Plan { layers, config, notices, tensors, parameters, annotations, files: recipes })
}

/// The files of a checkpoint with these tensors.
fn checkpoint(tensors: Vec<ConvertedTensor>) -> Checkpoint {
    let mut shards: Vec<Vec<Tensor>> = Vec::new();
    let mut converted = HashMap::new();
    let mut offset = 0;
    for ConvertedTensor { name, shape, dtype, segment } in tensors {
        let size_bytes = byte_size(dtype, &shape).unwrap_or_default();
        match shards.last_mut() {
            Some(_) if offset + size_bytes <= SHARD_BYTES => {}
            _ => {
                offset = 0;
                shards.push(Vec::new());
            }
        }
        let weight = Part { dtype, shape: shape.clone(), offset, size_bytes };
        offset += size_bytes;
        let tensor = Tensor {
            name: name.clone(),
            dtype: dtype.to_string(),
            quantisation: None,
            shape,
            parts: Parts { weight, scale: None, bias: None, global_scale: None },
        };
        if let Some(shard) = shards.last_mut() {
            shard.push(tensor);
        }
        converted.insert(name, segment);
    }
    let count = shards.len();
    let path = |at: usize| match count {
        1 => MAIN_FILE.to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
    };
    let shards = shards.into_iter().enumerate().map(|(at, tensors)| Shard {
        path: path(at).into(),
        front: Vec::new(),
        // Without this key, transformers refuses the file.
        metadata: BTreeMap::from([("format".to_owned(), "pt".to_owned())]),
        tensors,
        is_changed: true,
    });
    Checkpoint {
        shards: shards.collect(),
        index: (count > 1).then(|| MAIN_INDEX.to_owned()),
        is_image_model: false,
        config: None,
        scales: HashMap::new(),
        converted,
        notices: Vec::new(),
    }
}

/// The small files of a converted checkpoint, in memory.
struct MadeFiles(Vec<(&'static str, Vec<u8>)>);

impl Source for MadeFiles {
    fn files(&self) -> Vec<SourceFile> {
        let file = |(path, bytes): &(&str, Vec<u8>)| SourceFile {
            path: (*path).to_owned(),
            size: bytes.len() as u64,
        };
        self.0.iter().map(file).collect()
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ReadAt>> {
        let found = self.0.iter().find(|(made, _)| *made == path);
        let (_, bytes) = found.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(bytes.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Segment;
    use crate::safetensors::Dtype;

    #[test]
    fn large_checkpoints_have_several_files() {
        let tensor = |name: &str, elements: u64| ConvertedTensor {
            name: name.to_owned(),
            shape: vec![elements],
            dtype: Dtype::BF16,
            segment: Segment::Bytes(Vec::new()),
        };
        let files = |tensors: Vec<ConvertedTensor>| {
            let checkpoint = checkpoint(tensors);
            let path = |shard: &Shard| (shard.path.to_string(), shard.tensors.len());
            (checkpoint.shards.iter().map(path).collect::<Vec<_>>(), checkpoint.index)
        };
        let half = SHARD_BYTES / 4;
        let (one, index) = files(vec![tensor("a", half), tensor("b", half)]);
        assert_eq!((one, index), (vec![("model.safetensors".to_owned(), 2)], None));
        let (two, index) = files(vec![tensor("a", 3 * half), tensor("b", half), tensor("c", half)]);
        let first = ("model-00001-of-00002.safetensors".to_owned(), 1);
        assert_eq!(two, [first, ("model-00002-of-00002.safetensors".to_owned(), 2)]);
        assert_eq!(index.as_deref(), Some("model.safetensors.index.json"));
    }
}
