//! A model's text data: its tokenizer, its chat template and its special tokens, from the small files of a
//! checkpoint or from the metadata of a GGUF. It is untrusted, so it is read and used only in the text
//! helper.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use lode_model::error_chain;
use lode_model::gguf::{Header, Metadata};
use lode_model::prompt_template::TemplateFiles;
use lode_model::read_at::ReadAt;
use serde_json::Value;

use super::embedding::Embedding;
use super::protocol::{Extent, Format, ModelSpec, RunnerError, TensorFile};
use super::small_files::{MAX_FILE_BYTES, read_file, read_file_up_to, read_json, read_limited};
use crate::files::blob_name;
use crate::text::{
    ChatTemplate, EncodedPair, GoChat, PairEncoder, PromptTemplate, ReplyFormat, Special, SpecialTokens,
    Tokenizer, TokenizerError, gguf,
};

/// Size limit of tokenizer.json: current ones have up to some tens of MiB.
pub(super) const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// The text data. A model without a tokenizer still supports ids.
#[derive(Debug, Default)]
pub(super) struct TextProcessor {
    pub(super) name: String,
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) template: Option<PromptTemplate>,
    pub(super) special: SpecialTokens,
    pub(super) reply: ReplyFormat,
    pub(super) embedding: Embedding,
}

/// Text data without the template, which is read next, with a separate limit.
pub(super) struct TextReader<'a> {
    spec: &'a ModelSpec,
    text: TextProcessor,
    /// The metadata of a GGUF that has a vocabulary.
    metadata: Option<Metadata>,
    tokenizer_config: Option<Value>,
}

impl<'a> TextReader<'a> {
    /// Reads all except the template: from the metadata of a GGUF that has a vocabulary, else from the
    /// checkpoint's files.
    pub(super) fn read(spec: &'a ModelSpec, config: &Value) -> Result<TextReader<'a>, RunnerError> {
        match gguf_metadata(spec)? {
            Some(metadata) => match gguf::read(&metadata) {
                Err(TokenizerError::NoVocabulary) => TextReader::of_checkpoint(spec, config),
                Err(error) => Err(unsupported_error(spec, &error)),
                Ok((tokenizer, special)) => {
                    let (tokenizer, embedding) = (Some(tokenizer), Embedding::of_gguf(&metadata));
                    let name = spec.name.clone();
                    let text =
                        TextProcessor { name, tokenizer, special, embedding, ..TextProcessor::default() };
                    Ok(TextReader { spec, text, metadata: Some(metadata), tokenizer_config: None })
                }
            },
            None => TextReader::of_checkpoint(spec, config),
        }
    }

    fn of_checkpoint(spec: &'a ModelSpec, config: &Value) -> Result<TextReader<'a>, RunnerError> {
        let tokenizer = match read_file_up_to(spec, "tokenizer.json", MAX_TOKENIZER_BYTES)? {
            Some(bytes) => {
                Some(Tokenizer::from_json(&bytes).map_err(|error| unsupported_error(spec, &error))?)
            }
            None => None,
        };
        let tokenizer_config = read_json(spec, "tokenizer_config.json")?;
        let generation_config = read_json(spec, "generation_config.json")?;
        let special = match &tokenizer {
            Some(tokenizer) => {
                tokenizer.special_tokens(Some(config), generation_config.as_ref(), tokenizer_config.as_ref())
            }
            None => SpecialTokens::default(),
        };
        let (name, embedding) = (spec.name.clone(), Embedding::of_checkpoint(spec)?);
        let text = TextProcessor { name, tokenizer, special, embedding, ..TextProcessor::default() };
        Ok(TextReader { spec, text, metadata: None, tokenizer_config })
    }

    pub(super) fn text(&self) -> &TextProcessor {
        &self.text
    }

    /// Reads the template, and derives the format of the model's responses from its output.
    pub(super) fn read_template(self) -> Result<TextProcessor, RunnerError> {
        let TextReader { spec, mut text, metadata, tokenizer_config } = self;
        let template = match &metadata {
            Some(metadata) => gguf::chat_template(metadata, &text.special)
                .map_err(|error| unsupported_error(spec, &error))?,
            None => {
                let jinja = read_file(spec, "chat_template.jinja")?
                    .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                let template_json = read_json(spec, "chat_template.json")?;
                let files = TemplateFiles {
                    jinja: jinja.as_deref(),
                    json: template_json.as_ref(),
                    tokenizer_config: tokenizer_config.as_ref(),
                };
                let template = files.find().map(|source| ChatTemplate::new(source, &text.special));
                template
                    .transpose()
                    .map_err(|error| RunnerError::unsupported(format!("{}: {}", spec.name, error)))?
            }
        };
        text.template = choose_template(spec, template)?;
        if let (Some(template), Some(tokenizer)) = (&text.template, &text.tokenizer) {
            text.reply = ReplyFormat::of(template, tokenizer);
        }
        Ok(text)
    }
}

/// Why a text cannot be embedded within a limit, with ollama's messages.
#[derive(Debug, thiserror::Error)]
enum IdsError {
    #[error("{}", error_chain(.0))]
    Tokenizer(TokenizerError),
    #[error("the input length exceeds the context length")]
    TooLong,
    /// The limit leaves no token of the text besides the special tokens.
    #[error("input after truncation exceeds maximum context length")]
    NoTokensLeft,
}

/// A text's ids with its special tokens, truncated to the limit if allowed. The special tokens are kept.
fn tokenize_within(
    tokenizer: &Tokenizer,
    text: &str,
    limit: usize,
    truncate: bool,
) -> Result<Vec<u32>, IdsError> {
    let whole = tokenizer.encode_with(text, Special::ALL).map_err(IdsError::Tokenizer)?;
    if whole.len() <= limit {
        return Ok(whole);
    }
    if !truncate {
        return Err(IdsError::TooLong);
    }
    let bare = tokenizer.encode_with(text, Special::PARSE).map_err(IdsError::Tokenizer)?;
    let around = whole.len().saturating_sub(bare.len());
    let room = limit.saturating_sub(around);
    // Ollama refuses a limit of one token even for models without special tokens.
    if room == 0 || limit == 1 {
        return Err(IdsError::NoTokensLeft);
    }
    let mut ids = match (0..=around).find(|at| whole[*at..].starts_with(&bare)) {
        Some(before) => [&whole[..before], &bare[..room], &whole[before + bare.len()..]].concat(),
        None => whole,
    };
    ids.truncate(limit);
    Ok(ids)
}

impl TextProcessor {
    /// The ids of each text to embed.
    pub(super) fn encode(
        &self,
        texts: &[String],
        limit: usize,
        truncate: bool,
    ) -> Result<Vec<Vec<u32>>, RunnerError> {
        let tokenizer = self.tokenizer()?;
        let ids_of = |text: &String| {
            let mut ids = tokenize_within(tokenizer, text, limit, truncate).map_err(RunnerError::invalid)?;
            if ids.is_empty() {
                ids.extend(self.special.bos);
            }
            if ids.is_empty() {
                return Err(RunnerError::invalid("the input has no tokens"));
            }
            Ok(ids)
        };
        texts.iter().map(ids_of).collect()
    }

    /// The pairs of a query with each document.
    pub(super) fn encode_pairs(
        &self,
        query: &str,
        documents: &[String],
        limit: usize,
        truncate: bool,
    ) -> Result<Vec<EncodedPair>, RunnerError> {
        let invalid = |error| RunnerError::invalid(error_chain(&error));
        let pairs = PairEncoder::new(self.tokenizer()?, query, limit).map_err(invalid)?;
        documents.iter().map(|document| pairs.encode(document, truncate).map_err(invalid)).collect()
    }

    pub(super) fn tokenizer(&self) -> Result<&Tokenizer, RunnerError> {
        self.tokenizer.as_ref().ok_or_else(|| {
            RunnerError::unsupported(format!("{}: no tokenizer, so it does not support text", self.name))
        })
    }
}

fn unsupported_error(spec: &ModelSpec, error: &dyn std::error::Error) -> RunnerError {
    RunnerError::unsupported(format!("{}: {}", spec.name, error_chain(error)))
}

/// The metadata of a GGUF model, read without mapping the file.
fn gguf_metadata(spec: &ModelSpec) -> Result<Option<Metadata>, RunnerError> {
    let files = spec.tensors.iter().filter(|file| file.format == Format::Gguf);
    for TensorFile { path, extent, .. } in files {
        let opened =
            File::open(path).map_err(|error| RunnerError::failed(format!("{}: {error}", blob_name(path))))?;
        let len = opened.metadata().map_err(RunnerError::failed)?.len();
        let Extent { offset, size } = extent.unwrap_or(Extent { offset: 0, size: len });
        let header = Header::read(&Part { file: opened, offset, len: size });
        let header = header.map_err(|error| unsupported_error(spec, &error))?;
        // In a split GGUF, the first part has all metadata.
        if header.metadata.u64("split.no").unwrap_or(0) == 0 {
            return Ok(Some(header.metadata));
        }
    }
    Ok(None)
}

/// A file, or a part of it.
struct Part {
    file: File,
    offset: u64,
    len: u64,
}

impl ReadAt for Part {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.file.read_exact_at(buf, self.offset.saturating_add(offset))
    }
}

/// Chooses between the checkpoint's template and that of the manifest.
fn choose_template(
    spec: &ModelSpec,
    jinja: Option<ChatTemplate>,
) -> Result<Option<PromptTemplate>, RunnerError> {
    let on_top = match &spec.template {
        Some(file) => {
            let source = read_limited("the prompt template", file, MAX_FILE_BYTES)?;
            let source = String::from_utf8_lossy(&source);
            Some(GoChat::new(&source).map_err(|error| {
                RunnerError::unsupported(format!("{}: cannot parse the prompt template: {error}", spec.name))
            })?)
        }
        None => None,
    };
    Ok(PromptTemplate::choose(on_top, jinja, spec.has_renderer))
}
