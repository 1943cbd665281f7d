//! The seam between serving and computing: what a loaded model can be asked to do.
//! The runner calls it from the one thread that owns the model; `native` implements it over the kernels.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub mod native;

/// One loaded model on one device, owned by one thread.
///
/// The engine keeps a table of *sequences*. Each is a list of token ids whose keys and values lie in the paged
/// cache; [`step`](Engine::step) appends tokens to any number of them at once and answers with logits.
/// Space is promised when a sequence is opened, so a step never runs out of it half way through a generation.
///
/// With an f32 cache and float32 arithmetic the rows that a sequence gets depend on its own tokens only: not on what
/// else is in the step, nor on how its tokens were cut into slices.
pub trait Engine: Send {
    /// What is loaded. Constant for the life of the engine.
    fn info(&self) -> &ModelInfo;

    /// Opens an empty sequence that may grow to `max_len` tokens (prompt and answer together).
    /// Refused when the cache cannot promise that many or `max_sequences` are open; nothing changes then.
    fn open(&mut self, max_len: usize) -> Result<SequenceId, Full>;

    /// Forgets a sequence and gives its pages back. An id that is not open is ignored.
    fn close(&mut self, sequence: SequenceId);

    /// Keeps the first `len` tokens of a sequence; a `len` beyond its length, or an id that is not open, changes nothing.
    fn truncate(&mut self, sequence: SequenceId, len: usize);

    /// Tokens in a sequence so far; 0 for an id that is not open.
    fn len(&self, sequence: SequenceId) -> usize;

    /// Opens a sequence that begins with the first `len` tokens of another (all of it when `len` is larger) without
    /// computing them again, and may grow to `max_len`. Whole pages are shared, a last partial page is copied;
    /// neither sequence sees later changes of the other.
    fn fork(&mut self, sequence: SequenceId, len: usize, max_len: usize) -> Result<SequenceId, Full>;

    /// Appends every slice's tokens to its sequence and returns the rows that the slices want, in slice order.
    ///
    /// Slices may be of any length (long ones are computed in pieces), a sequence may appear once a step.
    /// On an error nothing was appended. A sequence whose numbers overflow does not fail the step:
    /// see [`Logits::rows`].
    fn step(&mut self, slices: &[Slice<'_>]) -> Result<Logits, StepError> {
        self.step_unless(&|| false, slices)
    }

    /// A step that ends early with [`StepError::Cancelled`] when `is_cancelled` becomes true, which stays true then. It is asked
    /// between pieces of work that are much shorter than a step. As on any error, nothing was appended.
    fn step_unless(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError>;
}

/// Names an open sequence of one engine. Ids are not used again while the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// The facts about a loaded model that serving needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The architecture as this crate names it, for example `llama`.
    pub architecture: &'static str,
    /// Rows of the embedding table: ids are below this, and a row of logits has this many numbers.
    pub vocab_size: usize,
    /// The longest sequence: what was asked for, at most what the model was trained with.
    pub context_length: usize,
    /// Width of a hidden state.
    pub embedding_length: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Every token sees all of its sequence: the model gives hidden states ([`Want::Hidden`]) and no logits, and takes a
    /// sequence in one slice.
    pub encoder: bool,
    /// Bytes that one token takes in the cache, all layers together.
    pub kv_bytes_per_token: usize,
    /// Bytes of weights that are mapped and read.
    pub weights_bytes: u64,
    /// What computes, for people: `cpu (avx2, 8 threads)`.
    pub device: String,
}

/// Tokens to append to a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    pub sequence: SequenceId,
    /// At least one id.
    pub tokens: &'a [u32],
    pub want: Want,
}

/// Which rows a slice asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None: a part of a prompt that is not its end.
    Nothing,
    /// The logits after the slice's last token: one row of `vocab_size`.
    Last,
    /// The logits after each token: `tokens.len()` rows of `vocab_size`.
    All,
    /// The hidden state after the final norm at each token: `tokens.len()` rows of `embedding_length`.
    Hidden,
}

/// The rows of one step, grouped by slice.
#[derive(Clone, Debug, Default)]
pub struct Logits {
    data: Vec<f32>,
    slices: Vec<SliceRows>,
}

#[derive(Clone, Copy, Debug)]
struct SliceRows {
    first: usize,
    rows: usize,
    width: usize,
    finite: bool,
}

impl Logits {
    /// Adds the rows of the next slice: `data.len()` is a multiple of `width`. For implementations of [`Engine`].
    pub fn push_slice(&mut self, data: &[f32], width: usize) {
        debug_assert!(width > 0 && data.len().is_multiple_of(width));
        self.slices.push(SliceRows {
            first: self.data.len(),
            rows: data.len() / width.max(1),
            width,
            finite: are_finite(data),
        });
        self.data.extend_from_slice(data);
    }

    /// The rows of all slices, one after the other: of each slice how many numbers it has, and how wide its rows are.
    pub fn of(data: Vec<f32>, slices: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut logits = Self { data, slices: Vec::new() };
        let mut first = 0;
        for (len, width) in slices {
            let finite = are_finite(&logits.data[first..first + len]);
            logits.slices.push(SliceRows { first, rows: len / width.max(1), width, finite });
            first += len;
        }
        logits
    }

    /// How many slices the step had.
    pub fn slices(&self) -> usize {
        self.slices.len()
    }

    /// The rows of slice `index`, oldest token first; empty for [`Want::Nothing`] and for an index out of range.
    /// Fails when a number is infinite or no number at all: that sequence is beyond saving, the others are not touched.
    pub fn rows(&self, index: usize) -> Result<std::slice::ChunksExact<'_, f32>, NotFinite> {
        match self.slices.get(index) {
            None => Ok([].chunks_exact(1)),
            Some(slice) if !slice.finite => Err(NotFinite),
            Some(slice) => {
                let end = slice.first + slice.rows * slice.width;
                Ok(self.data[slice.first..end].chunks_exact(slice.width))
            }
        }
    }

    /// The last row of slice `index`, for a slice that wanted [`Want::Last`] (or more).
    pub fn last(&self, index: usize) -> Result<Option<&[f32]>, NotFinite> {
        Ok(self.rows(index)?.last())
    }
}

/// A run at a time, so that the compiler uses vectors: rows are as wide as a vocabulary.
fn are_finite(numbers: &[f32]) -> bool {
    numbers.chunks(64).all(|run| run.iter().fold(true, |all, number| all & number.is_finite()))
}

/// The model's numbers overflowed in one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model produced numbers that are not finite")]
pub struct NotFinite;

/// The cache cannot promise what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// Every sequence slot is taken.
    #[error("all {max_sequences} sequences are in use")]
    Sequences { max_sequences: usize },
    /// Not now: other sequences hold the pages.
    #[error("the key/value cache has room for {free} more tokens, {wanted} were asked for")]
    Pages { wanted: usize, free: usize },
    /// Never: longer than the context of the loaded model.
    #[error("{wanted} tokens do not fit into a context of {context_length}")]
    Context { wanted: usize, context_length: usize },
    /// The sequence to fork from is not open.
    #[error("no such sequence")]
    UnknownSequence,
}

/// Why a step was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    #[error("sequence {} is not open", .0.0)]
    UnknownSequence(SequenceId),
    #[error("sequence {} appears twice in one step", .0.0)]
    DuplicateSequence(SequenceId),
    #[error("a slice of sequence {} has no tokens", .0.0)]
    EmptySlice(SequenceId),
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange { sequence: SequenceId, token: u32, vocab_size: usize },
    #[error("sequence {} was opened for {max_len} tokens and would have {len}", .sequence.0)]
    TooLong { sequence: SequenceId, len: usize, max_len: usize },
    #[error("the model is an encoder: it gives embeddings and writes no text")]
    NoLogits(SequenceId),
    #[error("an encoder takes sequence {} in one slice", .0.0)]
    NotWhole(SequenceId),
    #[error("the step was cancelled")]
    Cancelled,
    /// The device failed; the engine is not usable any more.
    #[error("the device failed: {0}")]
    Device(#[from] lode_kernels::DeviceError),
}

/// A model on disk: its configuration and the files that hold its tensors.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles {
    /// The checkpoint's `config.json`; a GGUF needs none, its metadata says what it is.
    pub config_json: Vec<u8>,
    /// In any order.
    pub tensors: Vec<BlobFile>,
}

/// One file that is mapped into memory.
#[derive(Clone, Debug)]
pub struct BlobFile {
    pub path: PathBuf,
    /// The layer's name: names the tensor of a blob keyed `data`.
    pub name: Option<String>,
    /// A whole safetensors file, to be read as such, rather than the blob of one tensor.
    pub whole_file: bool,
    /// How to read it.
    pub format: Format,
    /// Where it lies, if not in the whole of what is mapped.
    pub extent: Option<Extent>,
}

/// What a file with tensors in it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    #[default]
    Safetensors,
    /// A GGUF, or one file of a split one. Its metadata is the model's configuration, vocabulary and template.
    Gguf,
}

/// Where a file lies in a longer one, such as a tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub offset: u64,
    pub size: u64,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    F32,
    #[default]
    F16,
    /// Blocks of 32 signed bytes with an f16 scale; a head's last block is filled up with zeros.
    Q8_0,
}

impl std::str::FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "q8_0" => Ok(Self::Q8_0),
            _ => Err(UnknownKvType(text.to_owned())),
        }
    }
}

impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        })
    }
}

/// `LODE_KV_CACHE_TYPE` and its flag take one of three words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no cache type: f32, f16 or q8_0")]
pub struct UnknownKvType(pub String);

/// What the operator decides about a loaded model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub kv_type: KvType,
    /// The longest sequence; `None` is what the model was trained with. More than that is cut down to it.
    pub context_length: Option<usize>,
    /// Threads that compute; `None` is one a core.
    pub threads: Option<usize>,
    /// Sequences open at once. The cache is sized for so many of full length (memory is taken as it is used).
    pub max_sequences: usize,
    /// Use the scalar kernels, which are the specification, whatever the processor offers.
    pub scalar: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            kv_type: KvType::default(),
            context_length: None,
            threads: None,
            max_sequences: 4,
            scalar: false,
        }
    }
}

/// A blob's file as messages for clients name it: by its digest, without the folders of this machine.
pub(crate) fn blob_name(path: &Path) -> String {
    path.file_name().map_or_else(|| "a blob".to_owned(), |name| format!("blob {}", name.to_string_lossy()))
}

/// Why a model was refused. Always at load, always by name.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("config.json: {0}")]
    Config(#[from] crate::arch::ConfigError),
    /// Fields of its own, or those that a checkpoint of it would have.
    #[error("the GGUF's metadata: {0}")]
    Metadata(crate::arch::ConfigError),
    #[error("architecture `{architecture}` is not supported (supported: {})", .supported.join(", "))]
    UnsupportedArchitecture { architecture: String, supported: &'static [&'static str] },
    #[error("cannot map {}", blob_name(.path))]
    File { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", blob_name(.path))]
    Header { path: PathBuf, reason: String },
    #[error("tensor `{name}` occurs twice: in {} and in {}", blob_name(.first), blob_name(.second))]
    DuplicateTensor { name: String, first: PathBuf, second: PathBuf },
    #[error("tensor `{name}` is missing")]
    MissingTensor { name: String },
    #[error("tensor `{name}` has shape {found:?}, {expected:?} expected")]
    TensorShape { name: String, expected: Vec<u64>, found: Vec<u64> },
    #[error("tensor `{name}` has dtype {dtype}, which cannot be run (can be: {})", lode_kernels::DTYPES.join(", "))]
    TensorDtype { name: String, dtype: String },
    #[error("tensor `{name}`: {reason}")]
    TensorData { name: String, reason: String },
    #[error("the configuration has a vocabulary of {config}, tensor `{name}` has {found} rows")]
    Vocabulary { name: String, config: u64, found: u64 },
    #[error("the device failed: {0}")]
    Device(#[from] lode_kernels::DeviceError),
}
