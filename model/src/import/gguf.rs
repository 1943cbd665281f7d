//! Folders of GGUF files. Each file is stored whole, as in ollama, with the layer type of its kind. Headers
//! are read and checked; oddities of a well-formed file are notices.

use std::collections::BTreeMap;

use super::check;
use super::conversion::Conversion;
use super::error::ImportError;
use super::files::HeaderBudget;
use super::gguf_conversion::{self, PlannedGguf};
use super::gguf_part::{Part, annotations, config};
use super::plan::{Options, Plan, PlannedLayer};
use super::whole_file::{push_assembled, push_side_files, push_whole};
use crate::formats::weight_format::WeightFormat;
use crate::gguf::{self, Header, HeaderError, PartName, ReadError};
use crate::media_type;
use crate::recognise::runnable::GGUF_ARCHITECTURES;
use crate::source::{Source, SourceFile};

/// Limit for the headers of all files together, in bytes. A vocabulary takes up to about 10 MB.
const MAX_HEADERS_BYTES: u64 = gguf::MAX_HEADER_BYTES;
/// The hyper-parameters that every transformer has.
const HYPER_PARAMETERS: [&str; 3] = ["block_count", "embedding_length", "attention.head_count"];

pub(super) fn plan(
    source: &dyn Source,
    files: &[SourceFile],
    options: &Options,
) -> Result<Plan, ImportError> {
    let (ggufs, rest): (Vec<_>, Vec<_>) =
        files.iter().partition(|file| file.weight_format() == Some(WeightFormat::Gguf));
    let not_made = |conversion: Conversion| {
        let path = ggufs.first().map(|file| file.path.clone()).unwrap_or_default();
        ImportError::ConvertGguf { path, conversion }
    };
    let GgufFiles { models, projectors, adapters } = read_files(source, &ggufs)?;
    let mut models = models.into_iter();
    let mut model = models.next().unwrap_or_default();
    let mut made = None;
    if let Some(conversion) = options.conversion {
        let Conversion::Gguf(file_type) = conversion else { return Err(not_made(conversion)) };
        let Some(part) = model.first() else { return Err(not_made(conversion)) };
        let path = || part.file.path.clone();
        let file_type = file_type.ok_or_else(|| ImportError::AlreadyGguf { path: path() })?;
        let PlannedGguf { part, content, notices } = gguf_conversion::from_gguf(model, file_type, files)?;
        model = vec![part];
        made = Some((content, notices));
    }
    let mut notices = notices(&model, &adapters);
    let (mut layers, mut recipes) = (Vec::new(), Vec::new());
    match made {
        None => model.iter().for_each(|part| {
            push_whole(&mut layers, &mut recipes, media_type::OLLAMA_MODEL, &part.file);
            watch_last_layer(&mut layers, &part.header);
        }),
        Some((content, conversion_notices)) => {
            notices.extend(conversion_notices);
            let path = &model[0].file.path;
            push_assembled(&mut layers, &mut recipes, media_type::OLLAMA_MODEL, path, content);
        }
    }
    for (kind, parts) in
        [(media_type::OLLAMA_PROJECTOR, &projectors), (media_type::OLLAMA_ADAPTER, &adapters)]
    {
        parts.iter().for_each(|part| {
            push_whole(&mut layers, &mut recipes, kind, &part.file);
            watch_last_layer(&mut layers, &part.header);
        });
    }
    for other in models.flatten() {
        let (path, first) = (&other.file.path, model.first().map_or("", |part| &part.file.path));
        notices.push(format!("`{path}` is a different model from `{first}` and is stored whole"));
        push_whole(&mut layers, &mut recipes, media_type::OCTET_STREAM, &other.file);
    }
    push_side_files(source, &mut layers, &mut recipes, &rest)?;
    recipes.sort_by(|a, b| a.path.cmp(&b.path));

    let all = || model.iter().chain(&projectors).chain(&adapters).map(|part| &part.header);
    let tensors = all().map(|header| header.tensors.len() as u64).sum();
    let parameters = all().fold(0u64, |sum, header| sum.saturating_add(header.elements()));
    let config = config(&model, &projectors, &adapters, parameters);
    let annotations = model.first().map(|part| annotations(&part.header)).unwrap_or_default();
    Ok(Plan { layers, config, notices, tensors, parameters, annotations, files: recipes })
}

/// The GGUF files of a folder by what they are.
pub(super) struct GgufFiles {
    /// The files of each model in order.
    pub(super) models: Vec<Vec<Part>>,
    pub(super) projectors: Vec<Part>,
    pub(super) adapters: Vec<Part>,
}

/// Reads the headers of GGUF files, and checks that no part of a model is missing.
pub(super) fn read_files(source: &dyn Source, ggufs: &[&SourceFile]) -> Result<GgufFiles, ImportError> {
    let mut budget = HeaderBudget::new(MAX_HEADERS_BYTES);
    let mut models: BTreeMap<&str, Vec<Part>> = BTreeMap::new();
    let (mut projectors, mut adapters) = (Vec::new(), Vec::new());
    for file in ggufs.iter().copied() {
        let part = Part { file: file.clone(), header: read(source, file, &mut budget)? };
        if part.header.metadata.is_projector() {
            projectors.push(part);
        } else if part.header.metadata.is_adapter() {
            adapters.push(part);
        } else {
            let prefix = PartName::parse(&file.path).map_or(file.path.as_str(), |name| name.prefix);
            models.entry(prefix).or_default().push(part);
        }
    }
    for parts in models.values() {
        let parts: Vec<(&str, &Header)> =
            parts.iter().map(|part| (part.file.path.as_str(), &part.header)).collect();
        gguf::check_parts(&parts)?;
    }
    Ok(GgufFiles { models: models.into_values().collect(), projectors, adapters })
}

/// Makes the last layer's reader check its blocks.
fn watch_last_layer(layers: &mut [PlannedLayer], header: &Header) {
    if let Some(layer) = layers.last_mut() {
        layer.content = layer.content.clone().with_checks(check::watch_blocks(header));
    }
}

fn read(source: &dyn Source, file: &SourceFile, budget: &mut HeaderBudget) -> Result<Header, ImportError> {
    let path = || file.path.clone();
    let opened = source.open(&file.path).map_err(|source| ImportError::Read { path: path(), source })?;
    let left = budget.left();
    let header = Header::read_up_to(&*opened, left).map_err(|error| match error {
        ReadError::Header(HeaderError::TooLong { .. }) if left < MAX_HEADERS_BYTES => {
            budget.exceeded(&file.path)
        }
        ReadError::Header(source) => ImportError::Gguf { path: path(), source },
        ReadError::Read(source) => ImportError::Read { path: path(), source },
    })?;
    budget.take(&file.path, header.data_start.min(file.size))?;
    Ok(header)
}

fn notices(model: &[Part], adapters: &[Part]) -> Vec<String> {
    let Some(first) = model.first() else {
        let what = if adapters.is_empty() { "a projector" } else { "an adapter" };
        return vec![format!("there is only {what} and no model that it belongs to")];
    };
    let mut notices = Vec::new();
    if model.len() > 1 {
        notices.push(format!("the model is split over {} files, which stay as they are", model.len()));
    }
    if model.iter().all(|part| part.header.tensors.is_empty()) {
        notices.push("there are no tensors: the model is stored, but cannot be run".to_owned());
    }
    let metadata = &first.header.metadata;
    match metadata.architecture() {
        None => notices.push(format!("`{}` lacks the key `general.architecture`", first.file.path)),
        Some(name) if !GGUF_ARCHITECTURES.contains(&name) => {
            let known = GGUF_ARCHITECTURES.join(", ");
            notices.push(format!("architecture `{name}` is stored, but unknown (known: {known})"));
        }
        Some(name) => {
            let missing: Vec<String> = HYPER_PARAMETERS
                .iter()
                .filter(|key| metadata.architecture_value(key).is_none())
                .map(|key| format!("`{name}.{key}`"))
                .collect();
            if !missing.is_empty() {
                notices.push(format!("`{}` lacks the keys {}", first.file.path, missing.join(", ")));
            }
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;
    use crate::gguf::{Array, Metadata, NewTensor};

    #[test]
    fn the_headers_of_all_files_have_a_limit() {
        let mut metadata = Metadata::new();
        let tokens: Array = Array::String((0..10_000).map(|id| format!("token {id}")).collect());
        metadata.set("tokenizer.ggml.tokens", tokens);
        let header = Header::new(metadata, Vec::<NewTensor>::new()).unwrap().to_bytes();
        let size = header.len() as u64;
        let folder = Folder::default().with("a.gguf", header.clone()).with("b.gguf", header);
        let file = |path: &str| SourceFile { path: path.to_owned(), size };
        let read_both = |limit| {
            let mut budget = HeaderBudget::new(limit);
            read(&folder, &file("a.gguf"), &mut budget)?;
            read(&folder, &file("b.gguf"), &mut budget)
        };
        assert!(read_both(2 * size).is_ok());
        // The second header is too long already while it is read, or only as a whole.
        for limit in [size + 100_000, 2 * size - 1] {
            let error = read_both(limit).err().unwrap().to_string();
            assert!(error.contains("the headers of the files up to `b.gguf`"), "{limit}: {error}");
        }
    }
}
