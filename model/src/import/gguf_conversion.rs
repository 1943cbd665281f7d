//! Imports that produce a GGUF in place of the weights: of a checkpoint here, of a GGUF of floats for
//! [`super::gguf`]. Files that are not part of the GGUF are stored unchanged.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::error::ImportError;
use super::files::read_file;
use super::gguf_part::{Part, annotations, config};
use super::layer::{Content, Piece};
use super::plan::Plan;
use super::whole_file::{push_assembled, push_side_files};
use super::{checkpoint, policy, scaled};
use crate::convert::{self, CheckpointTensor, ConvertedGguf, FileType, SideFiles};
use crate::gguf::{Header, PartName};
use crate::media_type;
use crate::source::{Source, SourceFile};

/// The name of a checkpoint's GGUF, before the name of its type.
const STEM: &str = "model";

/// A GGUF that is produced as it is read.
pub(super) struct PlannedGguf {
    /// Its name and length.
    pub(super) part: Part,
    pub(super) content: Content,
    pub(super) notices: Vec<String>,
}

impl PlannedGguf {
    fn new(stem: &str, file_type: FileType, converted: ConvertedGguf, files: &[SourceFile]) -> PlannedGguf {
        let content = Content::new(converted.segments.into_iter().map(Piece::from).collect());
        let is_free = |path: &String| !files.iter().any(|file| file.path == *path);
        let first = format!("{stem}-{file_type}.gguf");
        let others = (1..).map(|number| format!("{stem}-{file_type}-{number}.gguf"));
        let path = std::iter::once(first).chain(others).find(is_free).unwrap_or_default();
        let mut notices = converted.notices;
        notices.push(format!("`lode pull --to` will give `{path}`, which replaces the original weights"));
        let file = SourceFile { path, size: content.size() };
        PlannedGguf { part: Part { file, header: converted.header }, content, notices }
    }
}

/// Plans a GGUF of a checkpoint.
pub(super) fn from_checkpoint(
    source: &dyn Source,
    files: &[SourceFile],
    file_type: Option<FileType>,
) -> Result<Plan, ImportError> {
    let mut checkpoint = checkpoint::read(source, files)?;
    scaled::pair_scales(&mut checkpoint)?;
    policy::check_quantisable(&checkpoint)?;
    let main_type = || checkpoint.main_dtype().and_then(|dtype| dtype.parse().ok());
    let file_type = file_type.or_else(main_type).unwrap_or(FileType::BF16);
    let mut taken: BTreeSet<&str> = checkpoint.shards.iter().map(|shard| &*shard.path).collect();
    taken.extend(checkpoint.index.as_deref());
    let mut side = SideFiles::default();
    for file in files {
        if let Some(slot) = side.slot(file) {
            *slot = Some(read_file(source, file)?);
            taken.insert(&file.path);
        }
    }
    let tensors: Vec<CheckpointTensor> = checkpoint
        .tensors()
        .map(|(shard, tensor)| CheckpointTensor {
            path: Arc::clone(&checkpoint.shards[shard].path),
            tensor,
            scales: checkpoint.scales.get(&tensor.name),
        })
        .collect();
    let converted = convert::checkpoint(&tensors, side, file_type)?;
    let PlannedGguf { part, content, mut notices } = PlannedGguf::new(STEM, file_type, converted, files);
    notices.extend(checkpoint.notices.iter().cloned());
    let (mut layers, mut recipes) = (Vec::new(), Vec::new());
    push_assembled(&mut layers, &mut recipes, media_type::OLLAMA_MODEL, &part.file.path, content);
    let is_left = |file: &&SourceFile| {
        !taken.contains(file.path.as_str()) && !scaled::is_scale_description(&checkpoint, &file.path)
    };
    let rest: Vec<&SourceFile> = files.iter().filter(is_left).collect();
    push_side_files(source, &mut layers, &mut recipes, &rest)?;
    recipes.sort_by(|a, b| a.path.cmp(&b.path));
    let (tensors, parameters) = (part.header.tensors.len() as u64, part.header.elements());
    let annotations = annotations(&part.header);
    let config = config(&[part], &[], &[], parameters);
    Ok(Plan { layers, config, notices, tensors, parameters, annotations, files: recipes })
}

/// Plans the quantisation of a GGUF's parts, given in order.
pub(super) fn from_gguf(
    parts: Vec<Part>,
    file_type: FileType,
    files: &[SourceFile],
) -> Result<PlannedGguf, ImportError> {
    let path = parts.first().map_or("", |part| part.file.path.as_str());
    let stem = stem(path).to_owned();
    let headers: Vec<(Arc<str>, Header)> =
        parts.into_iter().map(|part| (part.file.path.into(), part.header)).collect();
    Ok(PlannedGguf::new(&stem, file_type, convert::gguf(&headers, file_type)?, files))
}

/// Removes the type, the part number and the extension from a path: `a/mini-F16.gguf` becomes `a/mini`.
fn stem(path: &str) -> &str {
    let stem = match PartName::parse(path) {
        Some(part) => part.prefix,
        None => path.rsplit_once('.').map_or(path, |(stem, _)| stem),
    };
    let without_type = stem.rsplit_once(['-', '.', '_']).filter(|(_, last)| {
        ["F32", "F16", "BF16", "FP16", "FP32"].iter().any(|name| name.eq_ignore_ascii_case(last))
    });
    without_type.map_or(stem, |(stem, _)| stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems() {
        for (path, expect) in [
            ("mini.gguf", "mini"),
            ("a/mini-F16.gguf", "a/mini"),
            ("mini.bf16.gguf", "mini"),
            ("mini-1.5-f32-00001-of-00002.gguf", "mini-1.5"),
            ("mini-1.5.gguf", "mini-1.5"),
        ] {
            assert_eq!(stem(path), expect, "{path}");
        }
    }
}
