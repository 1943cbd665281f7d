//! Plans a checkpoint as one blob per tensor, quantised if that was requested.

use std::collections::{BTreeMap, BTreeSet};

use super::error::ImportError;
use super::files::{CONFIG, read_file};
use super::layer::Content;
use super::plan::{Options, Plan};
use super::whole_file::{push_assembled, push_whole};
use super::{checkpoint, facts, place, policy, scaled};
use crate::config::format_parameter_count;
use crate::convert;
use crate::formats::weight_format::WeightFormat;
use crate::media_type;
use crate::source::{Source, SourceFile};

/// Files that mark a folder as a model even without weights.
const MODEL_FILES: [&str; 5] =
    ["config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "model_index.json"];

pub(super) fn plan(
    source: &dyn Source,
    files: &[SourceFile],
    options: &Options,
) -> Result<Plan, ImportError> {
    let mut checkpoint = checkpoint::read(source, files)?;
    let of_model = |file: &SourceFile| {
        file.weight_format() == Some(WeightFormat::Safetensors) || MODEL_FILES.contains(&file.path.as_str())
    };
    if !files.iter().any(of_model) {
        return Err(ImportError::NoModel);
    }
    if options.conversion.is_some() {
        scaled::pair_scales(&mut checkpoint)?;
    }
    let checkpoint = checkpoint;
    let facts = facts::read(source, files, &checkpoint)?;
    let mut notices = facts.notices;
    notices.extend(scaled::notice(&checkpoint).filter(|_| options.conversion.is_none()));
    let tensor_layers = policy::plan_tensor_layers(&checkpoint, options.conversion)?;
    let quantised = options.conversion.filter(|_| tensor_layers.is_quantised());
    if let (Some(requested), None) = (options.conversion, quantised) {
        notices
            .push(format!("nothing was quantised: no tensor is of a kind that is quantised to {requested}"));
    }
    if quantised.is_some() || !checkpoint.scales.is_empty() {
        notices.push(
            "`lode pull --to` will give assembled safetensors files, because quantised tensors replace the originals"
                .to_owned(),
        );
    }
    if !tensor_layers.kept.is_empty() {
        let kept: Vec<&str> = tensor_layers.kept.iter().map(String::as_str).collect();
        let listed = convert::format_names(&kept);
        notices
            .push(format!("{listed}: kept as they are, because groups of elements do not divide their rows"));
    }
    if !tensor_layers.decoded.is_empty() {
        let decoded: Vec<&str> = tensor_layers.decoded.iter().map(String::as_str).collect();
        let listed = convert::format_names(&decoded);
        notices.push(format!(
            "{listed}: decoded to BF16, because tensors of their kind or shape are not quantised"
        ));
    }

    let (mut layers, mut recipes) = place::shards(&checkpoint, tensor_layers);
    let taken: BTreeSet<String> = recipes.iter().map(|recipe| recipe.path.clone()).collect();
    let is_left = |file: &&SourceFile| {
        !taken.contains(&file.path) && !scaled::is_scale_description(&checkpoint, &file.path)
    };
    let rest = files.iter().filter(is_left);
    let (json, other): (Vec<_>, Vec<_>) = rest.partition(|file| facts.json_files.contains(&file.path));
    for (media_type, files) in [(media_type::OLLAMA_JSON, json), (media_type::OCTET_STREAM, other)] {
        for file in files {
            match file.path.as_str() {
                CONFIG if !checkpoint.scales.is_empty() => {
                    let config = read_file(source, file)?;
                    let config = scaled::remove_scale_config(&config).unwrap_or(config);
                    let content = Content::bytes(config);
                    push_assembled(&mut layers, &mut recipes, media_type, &file.path, content);
                }
                _ => push_whole(&mut layers, &mut recipes, media_type, file),
            }
        }
    }
    recipes.sort_by(|a, b| a.path.cmp(&b.path));

    let tensors = checkpoint.tensors().count() as u64;
    let parameters =
        checkpoint.tensors().fold(0u64, |sum, (_, tensor)| sum.saturating_add(tensor.elements()));
    let mut config = facts.config;
    config.model_format = WeightFormat::Safetensors.as_str().to_owned();
    config.model_type = format_parameter_count(parameters);
    config.file_type = match quantised {
        Some(conversion) => conversion.to_string(),
        None => checkpoint.main_dtype().unwrap_or_default(),
    };
    let annotations = BTreeMap::new();
    Ok(Plan { layers, config, notices, tensors, parameters, annotations, files: recipes })
}
