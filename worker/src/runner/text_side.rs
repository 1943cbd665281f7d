//! The text side of a model on disk: its tokenizer, its chat template and its special tokens, from the small files of a checkpoint
//! or from the metadata of a GGUF. Reads files, and so blocks.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use lode_model::gguf::Metadata;
use lode_model::prompt_template::TemplateFiles;
use serde_json::Value;

use super::embed::Embedding;
use super::protocol::{Extent, ModelSpec, RunnerError, SmallFile};
use crate::text::{
    ChatTemplate, GoChat, PromptTemplate, ReplyFormat, SpecialTokens, Tokenizer, TokenizerError, gguf,
};

/// Small files of a checkpoint are refused beyond this.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// What turns texts into ids and back. A model without a tokenizer can still be given ids.
#[derive(Debug, Default)]
pub(super) struct TextSide {
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) template: Option<PromptTemplate>,
    pub(super) special: SpecialTokens,
    pub(super) reply: ReplyFormat,
    pub(super) embedding: Embedding,
}

impl TextSide {
    /// From the metadata of a GGUF that has a vocabulary, else from the files beside the tensors.
    pub(super) fn read(
        spec: &ModelSpec,
        config: &Value,
        metadata: Option<&Metadata>,
    ) -> Result<TextSide, RunnerError> {
        let text = metadata.map(|metadata| TextSide::of_gguf(spec, metadata)).transpose()?.flatten();
        let mut text = text.map_or_else(|| TextSide::of_checkpoint(spec, config), Ok)?;
        if let (Some(template), Some(tokenizer)) = (&text.template, &text.tokenizer) {
            text.reply = ReplyFormat::of(template, tokenizer);
        }
        Ok(text)
    }

    /// What the metadata says, `None` where it has no vocabulary.
    fn of_gguf(spec: &ModelSpec, metadata: &Metadata) -> Result<Option<TextSide>, RunnerError> {
        let failed = |error: &dyn std::error::Error| {
            RunnerError::unsupported(format!("{}: {}", spec.name, chain(error)))
        };
        let (tokenizer, special) = match gguf::read(metadata) {
            Err(TokenizerError::NoVocabulary) => return Ok(None),
            read => read.map_err(|error| failed(&error))?,
        };
        let template = gguf::chat_template(metadata, &special).map_err(|error| failed(&error))?;
        let template = chosen(spec, template)?;
        Ok(Some(TextSide {
            tokenizer: Some(Arc::new(tokenizer)),
            template,
            special,
            embedding: Embedding::of_gguf(metadata),
            ..TextSide::default()
        }))
    }

    fn of_checkpoint(spec: &ModelSpec, config: &Value) -> Result<TextSide, RunnerError> {
        let json = |name: &str| -> Result<Option<Value>, RunnerError> {
            read_file(spec, name)?.map(|bytes| parse_json(name, &bytes)).transpose()
        };
        let tokenizer =
            match read_file(spec, "tokenizer.json")? {
                Some(bytes) => Some(Arc::new(Tokenizer::from_json(&bytes).map_err(|error| {
                    RunnerError::unsupported(format!("{}: {}", spec.name, chain(&error)))
                })?)),
                None => None,
            };
        let tokenizer_config = json("tokenizer_config.json")?;
        let generation_config = json("generation_config.json")?;
        let special = match &tokenizer {
            Some(tokenizer) => SpecialTokens::read(
                tokenizer,
                Some(config),
                generation_config.as_ref(),
                tokenizer_config.as_ref(),
            ),
            None => SpecialTokens::default(),
        };
        let jinja =
            read_file(spec, "chat_template.jinja")?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let template_json = json("chat_template.json")?;
        let files = TemplateFiles {
            jinja: jinja.as_deref(),
            json: template_json.as_ref(),
            tokenizer_config: tokenizer_config.as_ref(),
        };
        let template = files.find().map(|source| ChatTemplate::new(source, &special)).transpose();
        let template =
            template.map_err(|error| RunnerError::unsupported(format!("{}: {}", spec.name, error)))?;
        let template = chosen(spec, template)?;
        let embedding = Embedding::of_checkpoint(spec)?;
        Ok(TextSide { tokenizer, template, special, embedding, ..TextSide::default() })
    }
}

/// The checkpoint's own template, or the one that its manifest put on top.
fn chosen(spec: &ModelSpec, jinja: Option<ChatTemplate>) -> Result<Option<PromptTemplate>, RunnerError> {
    let on_top = match &spec.template {
        Some(file) => {
            let source = read_limited("the prompt template", file)?;
            let source = String::from_utf8_lossy(&source);
            Some(GoChat::new(&source).map_err(|error| {
                RunnerError::unsupported(format!(
                    "{}: the prompt template cannot be read: {error}",
                    spec.name
                ))
            })?)
        }
        None => None,
    };
    Ok(PromptTemplate::choose(on_top, jinja, spec.has_renderer))
}

pub(super) fn read_file(spec: &ModelSpec, name: &str) -> Result<Option<Vec<u8>>, RunnerError> {
    spec.files.get(name).map(|file| read_limited(name, file)).transpose()
}

fn read_limited(name: &str, file: &SmallFile) -> Result<Vec<u8>, RunnerError> {
    let failed = |error: io::Error| RunnerError::failed(format!("{name}: {error}"));
    let mut opened = File::open(&file.path).map_err(failed)?;
    let whole = Extent { offset: 0, size: opened.metadata().map_err(failed)?.len() };
    let Extent { offset, size } = file.extent.unwrap_or(whole);
    if size > MAX_FILE_BYTES {
        return Err(RunnerError::unsupported(format!("{name}: larger than {MAX_FILE_BYTES} bytes")));
    }
    opened.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = Vec::new();
    opened.take(size).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

pub(super) fn parse_json(name: &str, bytes: &[u8]) -> Result<Value, RunnerError> {
    serde_json::from_slice(bytes).map_err(|error| RunnerError::unsupported(format!("{name}: {error}")))
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
