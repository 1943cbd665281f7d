//! The headers of the frames between a runner and its text helper. Both ends are from the same build.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::embedding::Embedding;
use super::super::protocol::{GenerateRequest, ModelSpec, RunnerError};
use crate::engine::ModelInfo;
use crate::text::{KnownTools, ReplyFormat};

/// The first frame: the data for the helper to read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReadText {
    pub(super) model: ModelSpec,
    /// The checkpoint's config.json.
    pub(super) config: Value,
    pub(super) memory: u64,
    /// The memory limit while the tokenizer is read.
    pub(super) read_memory: u64,
}

/// The first reply, followed by the vocabulary if there is a tokenizer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TokenizerReply {
    pub(super) has_tokenizer: bool,
    pub(super) eos: Vec<u32>,
    pub(super) embedding: Embedding,
}

/// The second reply.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TemplateReply {
    pub(super) has_template: bool,
    pub(super) reply: ReplyFormat,
}

/// Single-byte commands of the runner to the helper itself: fork an evaluator.
pub(super) const FORK: u8 = b'F';
/// Build the data shared by all grammars of the vocabulary.
pub(super) const MAKE_GRAMMARS: u8 = b'G';

/// The first frame of an evaluator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) pid: i32,
}

/// A call to an evaluator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Call {
    /// Prepare the prompt of the [`GenerateRequest`] in the bytes. Returns a [`PreparedRequest`], and ids.
    Prepare(EngineFacts),
    /// Render the prompt of that request. Returns its number of ids, and the text.
    Render(EngineFacts),
    /// Tokenize texts to embed. Returns the number of ids of each, and all ids.
    Encode { texts: Vec<String>, limit: usize, truncate: bool },
    /// Tokenize the pairs of a query with documents. Returns the number of ids of each and the index of the first
    /// one with token type 1, and all ids.
    EncodePairs { query: String, documents: Vec<String>, limit: usize, truncate: bool },
    /// Start a grammar. Returns an [`AllowedNext`].
    Begin { schema: Map<String, Value> },
    /// Advance the grammar by an id of the response. Returns an [`AllowedNext`].
    Take { id: u32 },
}

/// Facts about the model from the engine.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EngineFacts {
    pub(crate) context_length: usize,
    pub(crate) encoder: bool,
}

impl EngineFacts {
    pub(crate) fn of(info: &ModelInfo) -> EngineFacts {
        EngineFacts { context_length: info.context_length, encoder: info.encoder }
    }
}

/// A request whose prompt was converted to ids.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PreparedRequest {
    /// Without its input.
    pub(crate) request: GenerateRequest,
    /// Maximum length of the sequence in tokens.
    pub(crate) limit: usize,
    /// Number of ids at the front that are kept when the context is shifted.
    pub(crate) num_keep: usize,
    /// The ids that the content begins with, before those of its format.
    pub(crate) opening: Vec<u32>,
    /// The text of the prompt, if the response begins with it.
    pub(crate) echo: Option<String>,
    pub(crate) reading: Option<ReaderSettings>,
}

/// How to split the response into its parts; `None`: it is plain text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReaderSettings {
    pub(crate) in_thoughts: bool,
    pub(crate) tools: Option<KnownTools>,
}

/// The ids that a grammar allows next; the mask is in the bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AllowedNext {
    pub(super) is_complete: bool,
}

/// The reply to a [`Call`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply<T> {
    pub(super) result: Result<T, RunnerError>,
    /// Whether the evaluator has grown and ends after this reply.
    pub(super) is_last: bool,
}
