//! The interface between serving and computation: the operations of a loaded model. The runner calls it from
//! the one thread that owns the model. [`open::open`] chooses the implementation: `native` computes with the kernels,
//! `ort` with the ONNX Runtime.

mod map;
pub mod native;
pub mod open;
pub mod ort;

use std::collections::BTreeSet;

use lode_kernels::Ops;
pub use lode_kernels::{KvType, UnknownKvType};

pub use crate::arch::LoadError;
pub use crate::device::Device;
pub use crate::files::{BlobFile, Extent, Format, ModelFiles};

/// One loaded model on one device, owned by one thread.
///
/// The engine keeps a table of *sequences*. Each is a list of token ids whose keys and values are in the
/// paged cache. [`step`](Engine::step) appends tokens to any number of them and returns logits. Sequences take
/// space as they grow, and the cache may have less than all of them need: the caller then frees some.
///
/// With an f32 cache and float32 arithmetic, the rows of a sequence depend only on its own tokens: not on the
/// rest of the step, nor on how its tokens were split into slices.
pub trait Engine: Send {
    /// The loaded model. Constant for the life of the engine.
    fn info(&self) -> &ModelInfo;

    /// Opens an empty sequence that may grow to `max_len` tokens (prompt and generated tokens together).
    /// Fails without effect if `max_sequences` are open.
    fn open(&mut self, max_len: usize) -> Result<SequenceId, AdmitError>;

    /// Closes a sequence and frees its pages. An id that is not open is ignored.
    fn close(&mut self, sequence: SequenceId);

    /// Keeps the first `len` tokens of a sequence. Does nothing if the sequence is not longer or not open.
    fn truncate(&mut self, sequence: SequenceId, len: usize);

    /// Tokens in a sequence so far; 0 for an id that is not open.
    fn len(&self, sequence: SequenceId) -> usize;

    /// Opens a sequence that begins with the first `len` tokens of another (or all of them, if fewer) without
    /// recomputing them, and may grow to `max_len`. Whole pages are shared, a last partial page is copied;
    /// neither sequence sees later changes of the other. Also fails without space for the copy.
    fn fork(&mut self, sequence: SequenceId, len: usize, max_len: usize) -> Result<SequenceId, AdmitError>;

    /// Whether the cache has space to append these numbers of tokens to these sequences. A single sequence always has
    /// space up to the context length if no other one has tokens.
    fn has_space(&self, growth: &[(SequenceId, usize)]) -> bool;

    /// Appends every slice's tokens to its sequence and returns the requested rows, in slice order.
    ///
    /// Slices may be of any length (long ones are computed in pieces); a sequence may appear once per step.
    /// On an error nothing was appended. A sequence with non-finite results does not fail the step: see
    /// [`Logits::rows`].
    fn step(&mut self, slices: &[Slice<'_>]) -> Result<Logits, StepError> {
        self.step_unless(&|| false, slices)
    }

    /// As [`step`](Engine::step), but ends early with [`StepError::Cancelled`] when `is_cancelled` returns
    /// true, which it then keeps returning. It is checked between units of work much shorter than a step. As
    /// on any error, nothing was appended.
    fn step_unless(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError>;
}

/// Identifies an open sequence of an engine. An engine never reuses ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// The facts about a loaded model that serving needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The architecture as this crate names it, for example `llama`.
    pub architecture: &'static str,
    /// Rows of the embedding table: ids are below this, and a row of logits has this many values.
    pub vocab_size: usize,
    /// The maximum length of a sequence: as requested, but at most the model's trained context.
    pub context_length: usize,
    /// Width of a hidden state.
    pub embedding_length: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Whether every token attends to its whole sequence: then the model returns hidden states
    /// ([`RowSelection::Hidden`]) but no logits, and a sequence must be one slice.
    pub encoder: bool,
    /// Whether it returns hidden states. ONNX files of cross-encoders may return their classes only, those of decoders
    /// their logits.
    pub embeds: bool,
    /// Whether the hidden states of a sequence are one state, repeated: an ONNX file that pools them returns one.
    pub pools: bool,
    /// Number of classes of the model's classification head ([`RowSelection::Score`]); `None` without a head.
    pub classes: Option<usize>,
    /// Cache bytes per token, over all layers.
    pub kv_bytes_per_token: usize,
    /// Bytes of weights that are mapped and read.
    pub weights_bytes: u64,
    /// Bytes in the memory of a GPU after the load; 0 on the CPU.
    pub device_bytes: u64,
    /// The compute device, for display: `cpu (avx2, 8 threads)`, `cuda:0 NVIDIA H100 PCIe`.
    pub device: String,
}

/// Tokens to append to a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    pub sequence: SequenceId,
    /// At least one id.
    pub tokens: &'a [u32],
    pub want: RowSelection,
}

/// The rows that a slice requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSelection {
    /// None: for a part of a prompt before its end.
    Nothing,
    /// The logits after the slice's last token: one row of `vocab_size`.
    Last,
    /// The logits after each token: `tokens.len()` rows of `vocab_size`.
    All,
    /// The hidden state after the final norm at each token: `tokens.len()` rows of `embedding_length`.
    Hidden,
    /// The classes of the slice, which is a whole sequence: one row of raw logits, as many as
    /// [`ModelInfo::classes`]. Tokens from index `second` on belong to the second text of a pair: they have token
    /// type 1, if the model distinguishes types.
    Score { second: usize },
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
    /// Adds the rows of the next slice; `data.len()` is a multiple of `width`. For implementations of
    /// [`Engine`].
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

    /// Builds logits from the concatenated rows of all slices. Each item of `slices` is a slice's number of
    /// values and its row width.
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

    /// Number of slices in the step.
    pub fn slices(&self) -> usize {
        self.slices.len()
    }

    /// The rows of slice `index`, oldest token first; empty for [`RowSelection::Nothing`] and for an index out of
    /// range. Fails if a value is infinite or NaN: that sequence cannot continue, but the others are not
    /// affected.
    pub fn rows(&self, index: usize) -> Result<std::slice::ChunksExact<'_, f32>, NonFiniteError> {
        match self.slices.get(index) {
            None => Ok([].chunks_exact(1)),
            Some(slice) if !slice.finite => Err(NonFiniteError),
            Some(slice) => {
                let end = slice.first + slice.rows * slice.width;
                Ok(self.data[slice.first..end].chunks_exact(slice.width))
            }
        }
    }

    /// The last row of slice `index`, for a slice with [`RowSelection::Last`] or [`RowSelection::All`].
    pub fn last(&self, index: usize) -> Result<Option<&[f32]>, NonFiniteError> {
        Ok(self.rows(index)?.last())
    }
}

/// Checks in chunks, so that the compiler vectorises the loop: rows are as wide as the vocabulary.
fn are_finite(numbers: &[f32]) -> bool {
    numbers.chunks(64).all(|run| run.iter().fold(true, |all, number| all & number.is_finite()))
}

/// A sequence has infinite or NaN results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model produced infinite or NaN values")]
pub struct NonFiniteError;

/// The engine cannot open the requested sequence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Every sequence slot is in use.
    #[error("all {max_sequences} sequences are in use")]
    Sequences { max_sequences: usize },
    /// Temporary: other sequences use the space.
    #[error("the KV cache is full")]
    CacheFull,
    /// Permanent: longer than the context of the loaded model.
    #[error("{wanted} tokens do not fit into a context of {context_length}")]
    Context { wanted: usize, context_length: usize },
    /// The sequence to fork from is not open.
    #[error("no such sequence")]
    UnknownSequence,
}

/// Why a step failed.
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
    #[error("the model is an encoder: it computes embeddings but does not generate text")]
    NoLogits(SequenceId),
    #[error("the model returns no hidden states, so it computes no embeddings")]
    NoHidden(SequenceId),
    #[error("the model has no classification head")]
    NoClasses(SequenceId),
    #[error("an encoder needs sequence {} in one slice", .0.0)]
    NotWhole(SequenceId),
    /// The graph of the model failed for this sequence, or for others that were computed with it.
    #[error("the graph failed: {reason}")]
    Graph { sequence: SequenceId, reason: String },
    #[error("the step was cancelled")]
    Cancelled,
    /// Temporary: see [`Engine::has_space`].
    #[error("the KV cache is full")]
    CacheFull,
    /// The device failed; the engine can no longer be used.
    #[error("the device failed: {0}")]
    Device(#[from] lode_kernels::DeviceError),
}

/// Checks the slices of a step. `lengths` returns the length of an open sequence, and its maximum.
fn check_slices(
    info: &ModelInfo,
    lengths: impl Fn(SequenceId) -> Option<(usize, usize)>,
    slices: &[Slice<'_>],
) -> Result<(), StepError> {
    let mut seen = BTreeSet::new();
    for slice in slices {
        let id = slice.sequence;
        let (before, max_len) = lengths(id).ok_or(StepError::UnknownSequence(id))?;
        if !seen.insert(id) {
            return Err(StepError::DuplicateSequence(id));
        }
        if slice.tokens.is_empty() {
            return Err(StepError::EmptySlice(id));
        }
        let vocab_size = info.vocab_size;
        if let Some(&token) = slice.tokens.iter().find(|t| **t as usize >= vocab_size) {
            return Err(StepError::TokenOutOfRange { sequence: id, token, vocab_size });
        }
        let len = before.saturating_add(slice.tokens.len());
        if len > max_len {
            return Err(StepError::TooLong { sequence: id, len, max_len });
        }
        if info.encoder && matches!(slice.want, RowSelection::Last | RowSelection::All) {
            return Err(StepError::NoLogits(id));
        }
        if !info.embeds && slice.want == RowSelection::Hidden {
            return Err(StepError::NoHidden(id));
        }
        if info.classes.is_none() && matches!(slice.want, RowSelection::Score { .. }) {
            return Err(StepError::NoClasses(id));
        }
        if info.encoder && before > 0 {
            return Err(StepError::NotWhole(id));
        }
    }
    Ok(())
}

/// The operator's settings for a loaded model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub kv_type: KvType,
    /// The maximum length of a sequence. `None` is the model's trained context, which also is the upper
    /// limit.
    pub context_length: Option<usize>,
    /// Compute threads; `None` is one per core.
    pub threads: Option<usize>,
    /// Maximum number of open sequences.
    pub max_sequences: usize,
    /// Number of tokens in the cache, for all sequences together; at least those of one sequence at full length.
    /// `None`: for all sequences at full length. On the CPU, memory is allocated as it is used.
    pub cache_tokens: Option<usize>,
    /// The instruction level of the CPU kernels.
    pub ops: &'static Ops,
    pub device: Device,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            kv_type: KvType::default(),
            context_length: None,
            threads: None,
            max_sequences: 4,
            cache_tokens: None,
            ops: Ops::best(),
            device: Device::Cpu,
        }
    }
}
