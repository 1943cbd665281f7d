//! The headers of the frames between a runner and its helper. Both ends come from one build.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::embed::Embedding;
use super::super::protocol::{GenerateRequest, ModelSpec, RunnerError};
use crate::engine::ModelInfo;
use crate::text::{KnownTools, ReplyFormat};

/// The first frame: what the helper is to read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ReadText {
    pub(super) model: ModelSpec,
    /// The checkpoint's config.json.
    pub(super) config: Value,
    pub(super) memory: u64,
    /// While the tokenizer is read.
    pub(super) read_memory: u64,
}

/// The first answer; behind it is the vocabulary, where there is a tokenizer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TokenizerRead {
    pub(super) has_tokenizer: bool,
    pub(super) eos: Vec<u32>,
    pub(super) embedding: Embedding,
}

/// The second answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TemplateRead {
    pub(super) has_template: bool,
    pub(super) reply: ReplyFormat,
}

/// What the runner asks of the helper itself from then on: single bytes.
pub(super) const FORK: u8 = b'F';
/// To make what all grammars of the vocabulary share.
pub(super) const MAKE_GRAMMARS: u8 = b'G';

/// The first frame of an evaluator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) pid: i32,
}

/// What an evaluator is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Call {
    /// The prompt of the [`GenerateRequest`] in the bytes: answered with a [`Prepared`], and ids.
    Prepare(EngineFacts),
    /// The text of that prompt: answered with the text.
    Render(EngineFacts),
    /// Texts to embed: answered with how many ids each has, and all ids.
    Encode { texts: Vec<String>, limit: usize, truncate: bool },
    /// A grammar: answered with an [`AllowedNext`].
    Begin { schema: Map<String, Value> },
    /// The next id of the answer that the grammar follows: answered with an [`AllowedNext`].
    Take { id: u32 },
}

/// What the engine knows of the model.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(in crate::runner) struct EngineFacts {
    pub(in crate::runner) context_length: usize,
    pub(in crate::runner) encoder: bool,
}

impl EngineFacts {
    pub(in crate::runner) fn of(info: &ModelInfo) -> EngineFacts {
        EngineFacts { context_length: info.context_length, encoder: info.encoder }
    }
}

/// A request whose prompt is ids.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::runner) struct Prepared {
    /// Without its input.
    pub(in crate::runner) request: GenerateRequest,
    /// Tokens that the sequence may have.
    pub(in crate::runner) limit: usize,
    /// Ids at the front that stay when room is made.
    pub(in crate::runner) num_keep: usize,
    pub(in crate::runner) reading: Option<Reading>,
}

/// How the reply is read; one that is not is text as it is.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::runner) struct Reading {
    pub(in crate::runner) in_thoughts: bool,
    pub(in crate::runner) tools: Option<KnownTools>,
}

/// What a grammar allows next: the mask is in the bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AllowedNext {
    pub(super) is_complete: bool,
}

/// The answer to a [`Call`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer<T> {
    pub(super) result: Result<T, RunnerError>,
    /// The evaluator has grown and ends behind this answer.
    pub(super) is_last: bool,
}
