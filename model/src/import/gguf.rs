//! Folders of GGUF files. Each file is stored whole, as in ollama, with the layer type of its kind. Headers
//! are read and checked; oddities of a well-formed file are notices.

use std::collections::BTreeMap;

use super::finish::FileRecipe;
use super::gguf_conversion::{self, PlannedGguf};
use super::{ImportError, Options, Plan, PlannedLayer, Quantize, check, push_whole, side_file_type};
use crate::config::{ModelConfig, format_parameter_count};
use crate::gguf::{self, Header, PartName, ReadError};
use crate::media_type;
use crate::source::{Source, SourceFile};

/// The known architectures, as `general.architecture` spells them.
const KNOWN: [&str; 10] =
    ["llama", "mistral3", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "bert", "nomic-bert"];
/// The hyper-parameters that every transformer has.
const HYPER_PARAMETERS: [&str; 3] = ["block_count", "embedding_length", "attention.head_count"];

/// Whether a file is a GGUF by its name.
pub(super) fn is_gguf(file: &SourceFile) -> bool {
    file.path.to_ascii_lowercase().ends_with(".gguf")
}

/// A GGUF file of the folder.
pub(super) struct Part {
    pub(super) file: SourceFile,
    pub(super) header: Header,
}

pub(super) fn plan(
    source: &dyn Source,
    files: &[SourceFile],
    options: &Options,
) -> Result<Plan, ImportError> {
    let (ggufs, rest): (Vec<_>, Vec<_>) = files.iter().partition(|file| is_gguf(file));
    let not_made = |quantize: Quantize| {
        let path = ggufs.first().map(|file| file.path.clone()).unwrap_or_default();
        ImportError::QuantizeGguf { path, quantize }
    };
    let mut models: BTreeMap<&str, Vec<Part>> = BTreeMap::new();
    let (mut projectors, mut adapters) = (Vec::new(), Vec::new());
    for file in ggufs.iter().copied() {
        let part = Part { file: file.clone(), header: read(source, file)? };
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

    let mut models = models.into_values();
    let mut model = models.next().unwrap_or_default();
    let mut made = None;
    if let Some(quantize) = options.quantize {
        let Quantize::Gguf(file_type) = quantize else { return Err(not_made(quantize)) };
        if model.is_empty() {
            return Err(not_made(quantize));
        }
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
        Some((content, said)) => {
            notices.extend(said);
            gguf_conversion::push(&mut layers, &mut recipes, &model[0].file, content);
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

/// Makes the last layer's reader check its blocks.
fn watch_last_layer(layers: &mut [PlannedLayer], header: &Header) {
    if let Some(layer) = layers.last_mut() {
        layer.content = layer.content.clone().with_checks(check::watch_blocks(header));
    }
}

/// Adds the other files of a model: its licence as a licence layer, every other file as a plain file.
pub(super) fn push_side_files(
    source: &dyn Source,
    layers: &mut Vec<PlannedLayer>,
    recipes: &mut Vec<FileRecipe>,
    files: &[&SourceFile],
) -> Result<(), ImportError> {
    for file in files {
        let kind = match is_license(&file.path) {
            true => media_type::OLLAMA_LICENSE,
            false => side_file_type(source, file)?,
        };
        push_whole(layers, recipes, kind, file);
    }
    Ok(())
}

fn read(source: &dyn Source, file: &SourceFile) -> Result<Header, ImportError> {
    let path = || file.path.clone();
    let opened = source.open(&file.path).map_err(|source| ImportError::Read { path: path(), source })?;
    Header::read(&*opened).map_err(|error| match error {
        ReadError::Header(source) => ImportError::Gguf { path: path(), source },
        ReadError::Read(source) => ImportError::Read { path: path(), source },
    })
}

/// `LICENSE`, `LICENCE.txt`, `COPYING`, at the top level, where a model's own licence is.
fn is_license(path: &str) -> bool {
    let name = path.to_ascii_uppercase();
    ["LICENSE", "LICENCE", "COPYING"]
        .iter()
        .any(|word| name.strip_prefix(word).is_some_and(|rest| matches!(rest, "" | ".TXT" | ".MD")))
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
        Some(name) if !KNOWN.contains(&name) => {
            let known = KNOWN.join(", ");
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

/// Returns the config blob that ollama writes for such a model.
pub(super) fn config(model: &[Part], projectors: &[Part], adapters: &[Part], parameters: u64) -> ModelConfig {
    let main = model.first().or(adapters.first()).or(projectors.first());
    let architecture = |part: &Part| part.header.metadata.architecture().map(str::to_owned);
    let family = main.and_then(architecture).unwrap_or_default();
    let mut families: Vec<String> =
        Some(family.clone()).filter(|family| !family.is_empty()).into_iter().collect();
    for family in projectors.iter().filter_map(architecture) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    let hyper = |key: &str| main.and_then(|part| part.header.metadata.architecture_value(key)?.as_u64());
    let file_type = main.and_then(|part| part.header.quantisation());
    // A part without a file type has no tensors, or is the first of a split model.
    let file_type = file_type.or_else(|| model.iter().find_map(|part| part.header.quantisation()));
    ModelConfig {
        model_format: "gguf".to_owned(),
        model_family: family,
        model_families: families,
        model_type: format_parameter_count(parameters),
        file_type: file_type.unwrap_or_default().to_owned(),
        context_length: hyper("context_length"),
        embedding_length: hyper("embedding_length"),
        // The same values as ollama writes, whatever the model runs on.
        architecture: "amd64".to_owned(),
        os: "linux".to_owned(),
        ..ModelConfig::default()
    }
}

/// Returns the annotations that an OCI client shows of the model.
pub(super) fn annotations(header: &Header) -> BTreeMap<String, String> {
    let keys = [
        ("general.name", media_type::TITLE_ANNOTATION),
        ("general.description", media_type::DESCRIPTION_ANNOTATION),
        ("general.license", media_type::LICENSES_ANNOTATION),
        ("general.version", media_type::VERSION_ANNOTATION),
    ];
    let said = keys.into_iter().filter_map(|(key, annotation)| {
        let text = header.metadata.str(key).filter(|text| !text.is_empty() && text.len() <= 1024)?;
        Some((annotation.to_owned(), text.to_owned()))
    });
    said.collect()
}
