//! The protocol between worker and runner: JSON over HTTP/1.1 on a Unix socket, generations as NDJSON. Both
//! ends are from the same build and nothing else uses it, so the types may change freely.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::limits::TextLimits;
use crate::device::Device;
pub use crate::files::{Extent, Format};
use crate::text::{Call, SamplerOptions, Think};

/// The minimum context length of a request.
pub const MIN_CONTEXT: usize = 4;

/// `POST /load`: at most once per runner.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadRequest {
    pub model: ModelSpec,
    /// `f32`, `f16` or `q8_0`.
    pub kv_cache_type: String,
    /// Maximum length of a sequence in tokens; the model's own limit applies as well.
    pub context_length: usize,
    /// Maximum number of sequences that run at the same time.
    pub num_parallel: usize,
    /// Number of tokens in the KV cache, for all sequences together.
    pub cache_tokens: usize,
    /// Maximum number of prompt tokens computed between two steps of the running sequences.
    pub batch_tokens: usize,
    pub threads: Option<usize>,
    /// The instruction level of the CPU kernels.
    pub cpu: String,
    #[serde(default)]
    pub device: Device,
    /// Limits of evaluating the model's text data and requests.
    #[serde(default)]
    pub text: TextLimits,
}

/// A model as files on disk, regardless of the format in which it was pushed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The model's name in messages: its manifest's digest, which the worker replaces with the name from the
    /// request.
    pub name: String,
    /// Small files by their name in the checkpoint: `config.json`, `tokenizer.json`, `chat_template.jinja`,
    /// ...
    pub files: BTreeMap<String, SmallFile>,
    pub tensors: Vec<TensorFile>,
    /// A prompt template in Go's language, which the manifest has in addition to that of the checkpoint.
    #[serde(default)]
    pub template: Option<SmallFile>,
    /// Whether the manifest names a renderer that is built into ollama.
    #[serde(default)]
    pub has_renderer: bool,
}

impl ModelSpec {
    /// Whether its tensors are in GGUF files, whose metadata has the configuration.
    pub fn is_gguf(&self) -> bool {
        self.tensors.iter().any(|file| file.format == Format::Gguf)
    }

    /// The format of its weights, as clients read it.
    pub fn format(&self) -> &'static str {
        match self.tensors.first().map(|file| file.format) {
            Some(Format::Gguf) => "gguf",
            Some(Format::Onnx | Format::OnnxData) => "onnx",
            Some(Format::Safetensors) | None => "safetensors",
        }
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
    /// The layer's name, for blobs with the key `data`.
    pub name: Option<String>,
    /// Whether it is a checkpoint file with many tensors, rather than a tensor blob.
    pub whole_file: bool,
    #[serde(default)]
    pub format: Format,
    pub extent: Option<Extent>,
}

/// The response to `/load`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadResponse {
    pub architecture: String,
    pub device: String,
    pub vocab_size: usize,
    pub context_length: usize,
    pub weights_bytes: u64,
    /// Bytes in the memory of a GPU; 0 on the CPU.
    pub device_bytes: u64,
    pub kv_bytes_per_token: usize,
    /// Whether the model has a tokenizer, and so supports text.
    pub has_tokenizer: bool,
    /// Whether the model has a chat template, and so supports messages.
    pub has_template: bool,
}

/// Unparsed JSON; clones share it.
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

/// A request as sent by the worker: the caller's JSON and text are passed through without being parsed or
/// copied.
pub type OutgoingRequest = GenerateRequest<SharedJson, SharedText>;

/// `POST /generate`: returns a stream of [`Event`], one JSON object per line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GenerateRequest<J = Value, T = String> {
    pub input: Input<J, T>,
    pub sampling: SamplerOptions,
    /// Maximum number of ids to generate; `None`: until the model stops, up to ten contexts.
    pub num_predict: Option<usize>,
    /// Maximum length of this sequence in tokens; the loaded context length applies as well.
    pub num_ctx: Option<usize>,
    /// Number of ids at the front that are kept when a full context is shifted.
    pub num_keep: usize,
    pub stop: Vec<String>,
    /// Whether a prompt that is too long is truncated or refused.
    pub truncate: bool,
    /// Whether a full context is shifted, or ends the response.
    pub shift: bool,
    /// Whether to send the text at the end, in one piece, rather than token by token.
    #[serde(default)]
    pub whole: bool,
    /// Whether to report log-probabilities.
    pub logprobs: bool,
    pub top_logprobs: usize,
    /// Whether the model should think, if specified; passed to templates.
    #[serde(default)]
    pub think: Option<Think>,
    /// The JSON schema that the response is constrained to.
    #[serde(default)]
    pub format: Option<Map<String, Value>>,
    /// Whether the response is constrained to a tool call.
    #[serde(default)]
    pub tool_choice: Option<ToolChoice>,
    /// Whether the response begins with the text of the prompt and, if they are requested, its log-probabilities.
    #[serde(default)]
    pub echo: bool,
}

/// The tools of which the response must call one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    Required,
    Named(String),
}

/// The response to `POST /render`: the prompt of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RenderResponse {
    pub text: String,
    /// Number of ids before the prompt was truncated.
    pub prompt_tokens: usize,
}

/// The input of a generation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input<J = Value, T = String> {
    /// Unchanged text; the tokenizer adds only its own special tokens.
    Raw { prompt: T },
    /// Token ids, unchanged.
    Ids { ids: Vec<u32> },
    /// One turn, rendered with the chat template if the model has one. It follows the model's own messages,
    /// or the ids of earlier turns.
    Prompt {
        system: Option<String>,
        messages: Vec<J>,
        prompt: T,
        context: Vec<u32>,
        /// A Go template instead of the model's own.
        template: Option<String>,
        /// The text after the response, if any.
        suffix: String,
    },
    /// A conversation, rendered with the chat template.
    Chat { messages: Vec<J>, tools: Vec<J> },
}

/// One line of a generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// One id was generated, or a part of the prompt is repeated. All fields may be empty while a character, a stop
    /// text or a call is incomplete.
    Token {
        text: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        thinking: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<Call>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<TokenLogprob>,
    },
    /// The last line of a completed generation.
    Done(Done),
    /// The last line of a failed generation.
    Error(RunnerError),
}

/// How a generation ended, and its statistics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Text that was held back until the end.
    pub text: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thinking: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    pub reason: DoneReason,
    /// The stop text that ended the response, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_text: Option<String>,
    pub prompt_tokens: usize,
    /// Prompt tokens that were already in the KV cache.
    pub cached_tokens: usize,
    pub prompt_ns: u64,
    pub eval_tokens: usize,
    /// Generated tokens that are part of the reasoning.
    #[serde(default)]
    pub thinking_tokens: usize,
    pub eval_ns: u64,
    /// The ids of the prompt and of the response.
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

/// The log-probability of one id of the response, or of a repeated prompt, under the unmodified distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The id as text and bytes, as in [`TokenProbability`].
    pub token: String,
    pub bytes: Vec<u8>,
    /// `None` for the first id of a prompt, which follows nothing.
    pub logprob: Option<f32>,
    pub top_logprobs: Vec<TokenProbability>,
}

/// An id as text and bytes (possibly an incomplete character), and its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenProbability {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

/// `POST /score`: the log-probability of each id of each window, given the ids before it in the window.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScoreRequest {
    pub windows: Vec<Vec<u32>>,
    /// How many of the likeliest ids to return at each position.
    #[serde(default)]
    pub top: usize,
}

/// The response to `/score`, window by window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreResponse {
    pub windows: Vec<WindowScores>,
}

/// A window of n ids has n - 1 scores, for its second id to its last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowScores {
    pub logprobs: Vec<f32>,
    /// The likeliest ids at each of these positions, with their log-probabilities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Vec<(u32, f32)>>,
}

/// `POST /embed`: the embeddings of texts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EmbedRequest {
    pub inputs: Vec<String>,
    /// The prompt of the model that precedes each text; the model's default if absent.
    pub prompt_name: Option<String>,
    /// Whether a text that is too long is truncated or refused.
    pub truncate: bool,
    /// Number of dimensions to return of each embedding, at most all.
    pub dimensions: Option<usize>,
    /// Maximum length of a text in tokens; the model's limit applies as well.
    pub num_ctx: Option<usize>,
}

/// The response to `/embed`, in the order of the texts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbedResponse {
    pub vectors: Vec<Vec<f32>>,
    /// Total number of ids of all texts.
    pub prompt_tokens: usize,
}

/// `POST /rerank`: the relevance of documents to a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RerankRequest {
    pub query: String,
    pub documents: Vec<String>,
    /// Whether a document that is too long is truncated or refused.
    pub truncate: bool,
    /// Maximum length of a query with its document in tokens; the model's limit applies as well.
    pub num_ctx: Option<usize>,
}

/// The response to `/rerank`, in the order of the documents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RerankResponse {
    pub scores: Vec<f32>,
    /// Total number of ids of all pairs of the query and a document.
    pub prompt_tokens: usize,
}

/// `GET /status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub loaded: bool,
}

/// Why a request to a runner failed. The body of every response other than 200, and the last line of a failed
/// stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct RunnerError {
    pub kind: ErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request is invalid: 400.
    Invalid,
    /// The model is not supported, or does not support the request: 400.
    Unsupported,
    /// This machine lacks a library that the model needs: 503, for another worker may have it.
    Unavailable,
    /// The runner failed: 500.
    Failed,
    /// The runner ends or has ended: a request whose client has received nothing can be retried with another
    /// one.
    Stopped,
}

impl RunnerError {
    pub fn invalid(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Invalid, message: message.to_string() }
    }

    pub fn unsupported(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Unsupported, message: message.to_string() }
    }

    pub fn unavailable(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Unavailable, message: message.to_string() }
    }

    pub fn stopped(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Stopped, message: message.to_string() }
    }

    pub fn failed(message: impl ToString) -> RunnerError {
        RunnerError { kind: ErrorKind::Failed, message: message.to_string() }
    }
}
