//! The GGUF files of an imported folder, and what their keys say of the model: its config blob and the
//! annotations of its manifest.

use std::collections::BTreeMap;

use crate::config::{ModelConfig, format_parameter_count};
use crate::formats::weight_format::WeightFormat;
use crate::gguf::Header;
use crate::media_type;
use crate::source::SourceFile;

/// A GGUF file of the folder.
pub(super) struct Part {
    pub(super) file: SourceFile,
    pub(super) header: Header,
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
        model_format: WeightFormat::Gguf.as_str().to_owned(),
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
    let annotations = keys.into_iter().filter_map(|(key, annotation)| {
        let text = header.metadata.str(key).filter(|text| !text.is_empty() && text.len() <= 1024)?;
        Some((annotation.to_owned(), text.to_owned()))
    });
    annotations.collect()
}
