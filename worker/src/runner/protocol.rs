//! What worker and runner say to each other: JSON over HTTP/1.1 on a Unix socket, generations as NDJSON.
//! Both ends come from one build, so the types here may change freely; nothing else ever speaks this.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::helper::TextLimits;
pub use crate::engine::{Extent, Format};
use crate::text::{Call, SamplerOptions, Think};

/// The shortest context that a request can have.
pub const MIN_CONTEXT: usize = 4;

/// `POST /load`: once in the life of a runner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadRequest {
    pub model: ModelSpec,
    /// `f32`, `f16` or `q8_0`.
    pub kv_cache_type: String,
    /// Tokens a sequence may have; the model's own limit is applied on top.
    pub context_length: usize,
    /// Sequences that may run at once.
    pub num_parallel: usize,
    /// Prompt tokens computed between two steps of the running sequences.
    pub batch_tokens: usize,
    pub threads: Option<usize>,
    /// What evaluating the model's text data and requests may cost.
    #[serde(default)]
    pub text: TextLimits,
}

/// A model as files on disk, whatever it was pushed as.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Stands for the model's name in messages: its manifest's digest, which the worker replaces.
    pub name: String,
    /// Small files by their name in the checkpoint: `config.json`, `tokenizer.json`, `chat_template.jinja`, ...
    pub files: BTreeMap<String, SmallFile>,
    pub tensors: Vec<TensorFile>,
    /// A prompt template in Go's language, which the manifest puts on top of what the weights bring.
    #[serde(default)]
    pub template: Option<SmallFile>,
    /// Whether the manifest names a renderer that is built into ollama.
    #[serde(default)]
    pub has_renderer: bool,
}

impl ModelSpec {
    /// Whether its tensors lie in GGUF files, whose metadata says what the model is.
    pub fn is_gguf(&self) -> bool {
        self.tensors.iter().any(|file| file.format == Format::Gguf)
    }
}

/// A small file of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SmallFile {
    pub path: PathBuf,
    pub extent: Option<Extent>,
}

impl From<PathBuf> for SmallFile {
    fn from(path: PathBuf) -> SmallFile {
        SmallFile { path, extent: None }
    }
}

/// One file with tensors in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorFile {
    pub path: PathBuf,
    /// The layer's name, for blobs that are keyed `data`.
    pub name: Option<String>,
    /// A checkpoint's own file with many tensors, rather than a blob of one.
    pub whole_file: bool,
    #[serde(default)]
    pub format: Format,
    pub extent: Option<Extent>,
}

/// The answer to `/load`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Loaded {
    pub architecture: String,
    pub device: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub weights_bytes: u64,
    pub kv_bytes_per_token: usize,
    /// Whether the model has a tokenizer, and so can be given text.
    pub has_tokenizer: bool,
    /// Whether the model has a chat template, and so can be given messages.
    pub has_template: bool,
}

/// JSON as it was written; clones share it.
#[derive(Debug, Clone)]
pub struct SharedJson(Arc<Box<RawValue>>);

impl From<Box<RawValue>> for SharedJson {
    fn from(json: Box<RawValue>) -> SharedJson {
        SharedJson(Arc::new(json))
    }
}

impl Serialize for SharedJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A text; clones share it.
#[derive(Debug, Clone)]
pub struct SharedText(Arc<String>);

impl SharedText {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for SharedText {
    fn from(text: String) -> SharedText {
        SharedText(Arc::new(text))
    }
}

impl Serialize for SharedText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A request as the worker sends it: what the caller wrote passes through without being parsed or copied.
pub type OutgoingRequest = GenerateRequest<SharedJson, SharedText>;

/// `POST /generate`: answered with a stream of [`Event`], one JSON object a line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GenerateRequest<J = Value, T = String> {
    pub input: Input<J, T>,
    pub sampling: SamplerOptions,
    /// Ids to generate at most; `None` until the model stops, bounded by ten contexts.
    pub num_predict: Option<usize>,
    /// Tokens this sequence may have; the loaded context length is applied on top.
    pub num_ctx: Option<usize>,
    /// Ids at the front that survive when a full context is shifted.
    pub num_keep: usize,
    pub stop: Vec<String>,
    /// Whether a prompt that is too long is cut, or refused.
    pub truncate: bool,
    /// Whether a full context makes room and goes on, or ends the answer.
    pub shift: bool,
    /// Whether the answer is wanted at its end, in one piece, rather than token by token.
    #[serde(default)]
    pub whole: bool,
    /// Whether to report log-probabilities.
    pub logprobs: bool,
    pub top_logprobs: usize,
    /// Whether the model is to think, where that was said; templates are told.
    #[serde(default)]
    pub think: Option<Think>,
    /// The JSON schema that the answer is held to.
    #[serde(default)]
    pub format: Option<Map<String, Value>>,
}

/// The answer to `POST /render`: the text that a generation would begin with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rendered {
    pub text: String,
}

/// What to continue.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input<J = Value, T = String> {
    /// Text as it is; the tokenizer adds what it always adds.
    Raw { prompt: T },
    /// One turn: through the chat template where the model has one, after the messages that the model brings along, or after
    /// the ids of earlier turns.
    Prompt {
        system: Option<String>,
        messages: Vec<J>,
        prompt: T,
        context: Vec<u32>,
        /// A Go template in place of the model's own.
        template: Option<String>,
        /// What comes behind the answer; empty where nothing does.
        suffix: String,
    },
    /// A conversation, through the chat template.
    Chat { messages: Vec<J>, tools: Vec<J> },
}

/// One line of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// One id was generated. All of it may be empty while a character, a stop text or a call is incomplete.
    Token {
        text: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        thinking: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<Call>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        logprob: Option<TokenLogprob>,
    },
    /// The last line of a generation that ran to its end.
    Done(Done),
    /// The last line of one that did not.
    Error(RunnerError),
}

/// How a generation ended and what it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// What was held back to the end.
    pub text: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    pub reason: DoneReason,
    pub prompt_tokens: usize,
    /// Prompt tokens that were still in the cache from before.
    pub cached_tokens: usize,
    pub prompt_ns: u64,
    pub eval_tokens: usize,
    pub eval_ns: u64,
    /// The ids of the prompt and of the answer.
    pub context: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoneReason {
    /// An end-of-sequence id or a stop text.
    Stop,
    /// `num_predict`, or a full context.
    Length,
}

/// The log-probability of one generated id, under the unmodified distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    #[serde(flatten)]
    pub token: TokenChance,
    pub top_logprobs: Vec<TokenChance>,
}

/// An id as text and bytes (which may be no whole character), and how likely it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenChance {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

/// `POST /score`: how likely each id of each window is, given those before it in the window.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScoreRequest {
    pub windows: Vec<Vec<u32>>,
    /// How many of the likeliest ids are wanted at each place.
    #[serde(default)]
    pub top: usize,
}

/// The answer to `/score`, window by window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreResponse {
    pub windows: Vec<WindowScores>,
}

/// A window of n ids has n - 1 scores, for its second id to its last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowScores {
    pub logprobs: Vec<f32>,
    /// The likeliest ids in each of these places, with their log-probabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Vec<(u32, f32)>>,
}

/// `POST /embed`: the vectors of texts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EmbedRequest {
    pub inputs: Vec<String>,
    /// Whether a text that is too long is cut, or refused.
    pub truncate: bool,
    /// How many numbers of each vector are wanted; all of them where there are no more.
    pub dimensions: Option<usize>,
    /// Tokens a text may have; what the model can do is applied on top.
    pub num_ctx: Option<usize>,
}

/// The answer to `/embed`, in the order of the texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbedResponse {
    pub vectors: Vec<Vec<f32>>,
    /// The ids of all texts together.
    pub prompt_tokens: usize,
}

/// `GET /status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub loaded: bool,
}

/// Why a runner did not do something. The body of every answer that is not 200, and the last line of a broken stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RunnerError {
    pub kind: ErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request is at fault: 400.
    Invalid,
    /// The model cannot be run here, or cannot do this: 400.
    Unsupported,
    /// The runner is at fault: 500.
    Failed,
    /// The runner is at its end and has not begun to answer this request: another one may.
    Stopped,
}

impl RunnerError {
    pub fn invalid(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Invalid, message: message.to_string() }
    }

    pub fn unsupported(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Unsupported, message: message.to_string() }
    }

    pub fn stopped(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Stopped, message: message.to_string() }
    }

    pub fn failed(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Failed, message: message.to_string() }
    }
}
