//! What a manifest says about itself, beyond its tensors: its title, licence, task and origins. The index job reads
//! them from annotations, configs, GGUF keys and the model card, and pages and searches use them. All of it is stated
//! by the client that pushed it.

use std::collections::{BTreeMap, BTreeSet};

use lode_model::config::ModelConfig;
use lode_model::gguf::{self, Metadata};
use lode_model::import::{self, is_cross_encoder, is_text_generator};
use lode_model::index::{self, FileIndex, ModelSummary};
use lode_model::lineage::{self, Relation};
use lode_model::manifest::Manifest;
use lode_model::media_type;
use lode_model::recognise::{Artifact, FileKind, ModelFile, Role};
use lode_model::reference::Repository;
use lode_model::runnable::{GgufFacts, Obstacle, find_obstacle};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Registry;
use super::card::find_card_file;
use crate::Error;
use crate::auth::Caller;
use crate::card::{FrontMatter, MAX_CARD_BYTES, split_front_matter, summary_line};
use crate::error::chain;
use crate::store::{FactsRow, add_text_words};

/// Longer texts are cut.
const MAX_CHARS: usize = 300;
/// The longest text that a search looks through for one manifest.
const MAX_WORDS_BYTES: usize = 4096;
/// How much of a card a search looks through, and how many of its words.
const CARD_WORDS_BYTES: usize = 32 * 1024;
const MAX_CARD_WORDS: usize = 2000;
/// The most origins that are kept.
const MAX_BASES: usize = 16;
/// The most dtypes that are kept.
const MAX_DTYPES: usize = 6;
/// The most tags that are kept.
const MAX_TAGS: usize = 128;
/// How much of a licence's text decides which licence it is.
const LICENSE_BYTES: u64 = 2048;

/// The facts of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ModelFacts {
    pub title: Option<String>,
    pub description: Option<String>,
    /// An SPDX identifier where it is known.
    pub license: Option<String>,
    /// Hugging Face's name of what the model does: `text-generation`, ...
    pub task: Option<String>,
    pub library: Option<String>,
    pub context_length: Option<u64>,
    pub languages: Vec<String>,
    pub tags: Vec<String>,
    pub datasets: Vec<String>,
    /// The models that it was made from, as they may be called here.
    pub bases: Vec<String>,
    /// The number of elements of each dtype, most first.
    pub dtypes: Vec<(String, u64)>,
    /// Why the workers could not run it when it was indexed.
    pub obstacle: Option<Obstacle>,
    /// The words of the card, split for the search.
    #[serde(skip)]
    pub card_words: String,
}

impl ModelFacts {
    pub(super) fn from_json(json: &str) -> ModelFacts {
        serde_json::from_str(json).unwrap_or_default()
    }

    /// Why the workers cannot run it, if its files show that.
    pub(crate) fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref().filter(|obstacle| obstacle.persists())
    }

    /// The tags of a model in Hugging Face's API, each once in any case: what it is, does and is written for, those of
    /// its card, and `license:`, `dataset:` and `base_model:` with a name.
    pub(crate) fn hf_tags(
        &self,
        format: &str,
        architecture: Option<&str>,
        quantization: Option<&str>,
    ) -> Vec<String> {
        let format = Some(format).filter(|format| !format.is_empty());
        let texts = [self.library.as_deref(), format, architecture, quantization, self.task.as_deref()];
        let named = |kind: &str, names: &[String]| -> Vec<String> {
            names.iter().map(|name| format!("{kind}:{name}")).collect()
        };
        let license =
            self.license.as_ref().map(|license| format!("license:{}", license.to_ascii_lowercase()));
        let all = texts
            .into_iter()
            .flatten()
            .chain(self.tags.iter().chain(&self.languages).map(String::as_str))
            .map(str::to_owned)
            .chain(license)
            .chain(named("base_model", &self.bases))
            .chain(named("dataset", &self.datasets));
        let mut seen = BTreeSet::new();
        all.filter(|tag| !tag.contains(char::is_control) && seen.insert(tag.to_lowercase()))
            .take(MAX_TAGS)
            .collect()
    }

    /// The row of the database, with the architecture and the quantisation among the words.
    pub(super) fn row(&self, summary: &ModelSummary) -> FactsRow {
        let (architecture, quantization) = (summary.architecture.as_deref(), summary.quantization.as_deref());
        let more_words = [architecture, quantization];
        let tags = self.hf_tags(&summary.format, architecture, quantization);
        let texts = [&self.title, &self.description, &self.license, &self.task, &self.library];
        let mut words: Vec<String> = Vec::new();
        let lists = [&self.tags, &self.languages, &self.datasets, &self.bases];
        let all = texts.into_iter().flatten().map(String::as_str).chain(more_words.into_iter().flatten());
        words.extend(all.chain(lists.into_iter().flatten().map(String::as_str)).map(str::to_lowercase));
        let mut words = words.join(" ");
        let mut end = words.len().min(MAX_WORDS_BYTES);
        while !words.is_char_boundary(end) {
            end -= 1;
        }
        words.truncate(end);
        FactsRow {
            json: serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned()),
            license: self.license.clone(),
            task: self.task.clone(),
            context_length: self.context_length,
            words,
            card_words: self.card_words.clone(),
            bases: (!self.bases.is_empty()).then(|| format!("\n{}\n", self.bases.join("\n"))),
            tags: tags.iter().map(|tag| tag.to_lowercase()).collect(),
        }
    }
}

/// What the index job has read of a manifest already.
pub(super) struct Parts<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) artifact: &'a Artifact,
    /// The manifest's config blob.
    pub(super) config: Option<&'a [u8]>,
    /// The checkpoint's own config.
    pub(super) checkpoint: Option<&'a [u8]>,
    pub(super) files: &'a [FileIndex],
}

impl Registry {
    /// Reads the facts of a manifest. What cannot be read states nothing.
    pub(super) async fn facts_read(
        &self,
        repository: &Repository,
        parts: &Parts<'_>,
    ) -> Result<ModelFacts, Error> {
        let is_card = parts.manifest.referrer_type() == Some(media_type::LODE_CARD);
        let attached = if is_card { import::card_layer(parts.manifest) } else { None };
        let file = find_card_file(parts.artifact).map(|file| (&file.layer.digest, file.offset, file.size));
        let card = match attached.map(|layer| (&layer.digest, 0, layer.size)).or(file) {
            Some((blob, offset, size)) => {
                let range = offset..offset.saturating_add(size.min(MAX_CARD_BYTES));
                let read = self.blob_part(&Caller::INTERNAL, repository, blob, range).await;
                Some(String::from_utf8_lossy(&some_if_stored(read)?.unwrap_or_default()).into_owned())
            }
            None => None,
        };
        let license = match parts.artifact.files.iter().find(|file| is_license(file)) {
            Some(file) => {
                let range = file.offset..file.offset + file.size.min(LICENSE_BYTES);
                let read = self.blob_part(&Caller::INTERNAL, repository, &file.layer.digest, range).await;
                some_if_stored(read)?.and_then(|text| license_of(&String::from_utf8_lossy(&text)))
            }
            None => None,
        };
        let weights = parts.artifact.weights();
        let gguf = weights.iter().filter_map(|at| parts.artifact.files.get(*at));
        let (gguf, runs) = match gguf.into_iter().find(|file| file.kind() == Some(FileKind::Gguf)) {
            Some(file) => {
                let read = self.file_inspect(repository, file, move |bytes| {
                    let header = gguf::Header::read_up_to(bytes, index::MAX_GGUF_HEADER_BYTES);
                    let read = |header: gguf::Header| {
                        (gguf_facts(&header.metadata), GgufFacts::new(&header.metadata))
                    };
                    header.map(read).map_err(|error| chain(&error))
                });
                read.await?.ok().unzip()
            }
            None => (None, None),
        };
        let card_words = card.as_deref().map(card_words).unwrap_or_default();
        let card = card.as_deref().map(card_facts).unwrap_or_default();
        let license = ModelFacts { license, ..ModelFacts::default() };
        let stated =
            [annotated_facts(parts.manifest), card, gguf.unwrap_or_default(), config_facts(parts), license];
        let mut facts = stated.into_iter().fold(ModelFacts::default(), merge);
        let origins = lineage::manifest_origins(parts.manifest, parts.artifact, parts.config);
        let named = origins.into_iter().filter(|origin| origin.relation != Relation::Subject);
        facts.bases.extend(named.filter_map(|origin| lineage::local_name(&origin.name)));
        let mut seen = BTreeSet::new();
        facts.bases.retain(|base| !base.contains('\n') && seen.insert(base.clone()));
        facts.bases.truncate(MAX_BASES);
        facts.dtypes = dtypes(parts.files);
        facts.obstacle = find_obstacle(parts.artifact, parts.checkpoint, runs.as_ref(), parts.files);
        facts.card_words = card_words;
        facts.license = facts.license.map(|license| spdx(&license));
        Ok(facts)
    }
}

/// Turns an absent blob or range into `None`.
fn some_if_stored(read: Result<Vec<u8>, Error>) -> Result<Option<Vec<u8>>, Error> {
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::BlobUnknown { .. } | Error::RangeUnsatisfiable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Adds what the second states to what the first does not.
fn merge(first: ModelFacts, second: ModelFacts) -> ModelFacts {
    let list = |first: Vec<String>, second: Vec<String>| if first.is_empty() { second } else { first };
    ModelFacts {
        title: first.title.or(second.title),
        description: first.description.or(second.description),
        license: first.license.or(second.license),
        task: first.task.or(second.task),
        library: first.library.or(second.library),
        context_length: first.context_length.or(second.context_length),
        languages: list(first.languages, second.languages),
        tags: list(first.tags, second.tags),
        datasets: list(first.datasets, second.datasets),
        bases: list(first.bases, second.bases),
        dtypes: Vec::new(),
        obstacle: None,
        card_words: String::new(),
    }
}

fn text(value: &str) -> Option<String> {
    let plain: String = value.trim().chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    Some(plain).filter(|plain| !plain.is_empty())
}

fn annotated_facts(manifest: &Manifest) -> ModelFacts {
    let value = |key: &str| manifest.annotations.get(key).and_then(|value| text(value));
    ModelFacts {
        title: value(media_type::TITLE_ANNOTATION),
        description: value(media_type::DESCRIPTION_ANNOTATION),
        license: value(media_type::LICENSES_ANNOTATION),
        ..ModelFacts::default()
    }
}

fn card_facts(card: &str) -> ModelFacts {
    let (yaml, _) = split_front_matter(card);
    let stated = yaml.map(FrontMatter::parse).unwrap_or_default();
    ModelFacts {
        title: stated.title,
        description: summary_line(card),
        license: stated.license,
        task: stated.task,
        library: stated.library,
        languages: stated.languages,
        tags: stated.tags,
        datasets: stated.datasets,
        bases: stated.base_models.iter().filter_map(|name| lineage::local_name(name)).collect(),
        ..ModelFacts::default()
    }
}

/// The words of a card, each once, split for the search.
pub(super) fn card_words(card: &str) -> String {
    let (_, text) = split_front_matter(card);
    let mut end = text.len().min(CARD_WORDS_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut words = BTreeSet::new();
    add_text_words(&mut words, &text[..end], MAX_CARD_WORDS);
    words.into_iter().collect::<Vec<String>>().join(" ")
}

fn gguf_facts(metadata: &Metadata) -> ModelFacts {
    let value = |key: &str| metadata.str(key).and_then(text);
    let capabilities = metadata.capabilities();
    let origins = lineage::gguf_origins(metadata);
    ModelFacts {
        title: value("general.name"),
        description: value("general.description"),
        license: value("general.license"),
        task: match capabilities.first() {
            Some(&"rerank") => Some("text-ranking".to_owned()),
            Some(&"embedding") => Some("feature-extraction".to_owned()),
            // A base model has no template.
            _ if metadata.chat_template().is_some() || metadata.str("tokenizer.ggml.model").is_some() => {
                Some("text-generation".to_owned())
            }
            _ => None,
        },
        context_length: metadata.architecture_value("context_length").and_then(gguf::Value::as_u64),
        bases: origins.iter().filter_map(|origin| lineage::local_name(&origin.name)).collect(),
        ..ModelFacts::default()
    }
}

fn config_facts(parts: &Parts<'_>) -> ModelFacts {
    let checkpoint: Value =
        parts.checkpoint.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    let inner = checkpoint.get("text_config").unwrap_or(&checkpoint);
    let context = ["max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"];
    let context = context.iter().find_map(|key| inner.get(*key).and_then(Value::as_u64));
    let config = parts.config.and_then(|config| ModelConfig::parse(config).ok()).unwrap_or_default();
    let is_embedding = config.capabilities.iter().any(|capability| capability == "embedding");
    let class = checkpoint["architectures"][0].as_str().unwrap_or_default();
    let task = match class {
        _ if checkpoint.as_object().is_some_and(is_cross_encoder) => Some("text-ranking"),
        _ if is_embedding => Some("feature-extraction"),
        _ if parts.artifact.is_image_model() => Some("text-to-image"),
        _ if is_text_generator(class) => Some("text-generation"),
        _ if class.ends_with("ForConditionalGeneration") => Some("image-text-to-text"),
        _ if class.ends_with("ForSequenceClassification") => Some("text-classification"),
        _ if ["BertModel", "XLMRobertaModel", "MPNetModel", "NomicBertModel", "RobertaModel"]
            .contains(&class) =>
        {
            Some("feature-extraction")
        }
        _ if config.capabilities.iter().any(|capability| capability == "completion") => {
            Some("text-generation")
        }
        _ => None,
    };
    ModelFacts {
        task: task.map(str::to_owned),
        context_length: context.or(config.context_length).filter(|context| *context > 0),
        ..ModelFacts::default()
    }
}

fn dtypes(files: &[FileIndex]) -> Vec<(String, u64)> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in files.iter().filter(|file| file.is_main).flat_map(|file| &file.tensors) {
        let sum = sums.entry(&tensor.dtype).or_default();
        *sum = sum.saturating_add(tensor.elements());
    }
    let mut all: Vec<(String, u64)> = sums.into_iter().map(|(dtype, sum)| (dtype.to_owned(), sum)).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all.truncate(MAX_DTYPES);
    all
}

fn is_license(file: &ModelFile) -> bool {
    let is_named = file.path.as_deref().is_some_and(|path| {
        ["license", "license.txt", "license.md"].contains(&&path.to_ascii_lowercase()[..])
    });
    file.is_plain() && (file.role == Role::License || is_named)
}

/// The licence of a text that begins with its name.
fn license_of(text: &str) -> Option<String> {
    let start: String = text.chars().take(400).collect::<String>().to_lowercase();
    let start = start.split_whitespace().collect::<Vec<_>>().join(" ");
    let known = [
        ("apache license version 2.0", "Apache-2.0"),
        ("mit license", "MIT"),
        ("gnu affero general public license version 3", "AGPL-3.0"),
        ("gnu general public license version 3", "GPL-3.0"),
        ("gnu lesser general public license version 3", "LGPL-3.0"),
        ("mozilla public license version 2.0", "MPL-2.0"),
        ("bsd 3-clause license", "BSD-3-Clause"),
        ("bsd 2-clause license", "BSD-2-Clause"),
        ("gemma terms of use", "gemma"),
        ("llama 2 community license", "llama2"),
        ("meta llama 3 community license", "llama3"),
        ("llama 3.1 community license", "llama3.1"),
        ("llama 3.2 community license", "llama3.2"),
        ("llama 3.3 community license", "llama3.3"),
    ];
    let named = known.iter().find(|(title, _)| start.contains(title)).map(|(_, name)| (*name).to_owned());
    // `lode create --license MIT` stores the name alone.
    named.or_else(|| Some(text.trim()).filter(|text| is_identifier(text)).map(str::to_owned))
}

fn is_identifier(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-.+".contains(c);
    (2..=40).contains(&text.len()) && text.chars().all(is_plain)
}

/// The SPDX identifier of a licence as Hugging Face names it, so that both are one licence to a filter.
fn spdx(license: &str) -> String {
    let known = [
        ("apache-2.0", "Apache-2.0"),
        ("mit", "MIT"),
        ("bsd-2-clause", "BSD-2-Clause"),
        ("bsd-3-clause", "BSD-3-Clause"),
        ("gpl-3.0", "GPL-3.0"),
        ("agpl-3.0", "AGPL-3.0"),
        ("lgpl-3.0", "LGPL-3.0"),
        ("mpl-2.0", "MPL-2.0"),
        ("cc-by-4.0", "CC-BY-4.0"),
        ("cc-by-sa-4.0", "CC-BY-SA-4.0"),
        ("cc-by-nc-4.0", "CC-BY-NC-4.0"),
        ("cc0-1.0", "CC0-1.0"),
        ("unlicense", "Unlicense"),
    ];
    let folded = license.to_ascii_lowercase();
    known
        .iter()
        .find(|(name, _)| *name == folded)
        .map_or_else(|| license.to_owned(), |(_, id)| (*id).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_recognised_by_their_text() {
        let check =
            |text: &str, expect: Option<&str>| assert_eq!(license_of(text).as_deref(), expect, "{text}");
        check(
            "                              Apache License\n                        Version 2.0, January 2004",
            Some("Apache-2.0"),
        );
        check("MIT License\n\nCopyright", Some("MIT"));
        check("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT", Some("llama3.1"));
        check("MIT", Some("MIT"));
        check("All rights reserved, ask us.", None);
        assert_eq!(spdx("apache-2.0"), "Apache-2.0");
        assert_eq!(spdx("Something"), "Something");
    }

    #[test]
    fn the_card_and_annotations_are_merged() {
        let card = card_facts(
            "---\nlicense: mit\ntags: [Chat]\nbase_model: https://huggingface.co/Org/Base\n---\n\nA model that answers.",
        );
        let annotated = ModelFacts { license: Some("Apache-2.0".to_owned()), ..ModelFacts::default() };
        let facts = merge(annotated, card);
        assert_eq!(facts.license.as_deref(), Some("Apache-2.0"));
        assert_eq!(facts.description.as_deref(), Some("A model that answers."));
        assert_eq!(facts.bases, ["org/base"]);
        let summary = ModelSummary {
            format: "gguf".to_owned(),
            architecture: Some("llama".to_owned()),
            parameters: None,
            quantization: None,
        };
        let row = facts.row(&summary);
        assert_eq!(row.words, "a model that answers. apache-2.0 llama chat org/base");
        assert_eq!(row.bases.as_deref(), Some("\norg/base\n"));
        assert_eq!(row.tags, ["gguf", "llama", "chat", "license:apache-2.0", "base_model:org/base"]);
        assert_eq!(ModelFacts::from_json(&row.json), facts);
        assert_eq!(ModelFacts::from_json("nonsense"), ModelFacts::default());
    }
}
