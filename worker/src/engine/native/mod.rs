//! The native engine: runs a model of `arch` on the kernels of a device, with a paged cache shared by its
//! sequences. The runner loads one with [`load`] and keeps it on one thread.

#[cfg(test)]
mod cuda_format_tests;
#[cfg(test)]
mod cuda_launch_tests;
#[cfg(test)]
pub(crate) mod cuda_tests;
#[cfg(test)]
mod encoder_tests;
#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod gguf_tests;
#[cfg(test)]
mod load_tests;
mod pages;
mod parts;
mod projection;
mod scaled;
#[cfg(test)]
mod scaled_tests;
mod tensors;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use lode_model::gguf::Metadata;

use self::pages::{Pages, pages_for};
pub use self::projection::{Projection, ProjectionShape};
use self::tensors::MappedTensors;
use super::{
    AdmitError, Device, Engine, Format, KvType, LoadError, LoadOptions, Logits, ModelFiles, ModelInfo,
    RowSelection, SequenceId, Slice, StepError, check_slices,
};
use crate::arch::{Config, Forward, Output, Pass, Plan};
use lode_kernels::cpu::Cpu;
use lode_kernels::{Batch, CacheShape, Kernels, PAGE_LEN, Span};

/// Maximum rows per pass: longer slices are computed in pieces of this many tokens.
const PASS_ROWS: usize = 512;
/// Maximum rows of logits per pass; each is `vocab_size` wide.
const PASS_LOGITS: usize = 128;

/// Loads a model onto the device of the options.
pub fn load(files: &ModelFiles, options: LoadOptions) -> Result<Box<dyn Engine>, LoadError> {
    open(files)?.load(options)
}

/// Recognises a model and maps its files. The configuration of a checkpoint is checked before its files are
/// mapped.
pub fn open(files: &ModelFiles) -> Result<OpenModel, LoadError> {
    if files.tensors.iter().all(|file| file.format == Format::Safetensors) {
        let config = Config::parse(&files.config_json)?;
        let plan = Plan::new(&config)?;
        let tensors = MappedTensors::open(&files.tensors)?.with_scale_block(config.scale_block());
        return Ok(OpenModel { plan, tensors });
    }
    let tensors = MappedTensors::open(&files.tensors)?;
    let config = match tensors.config()? {
        Some(config) => config,
        None => Config::parse(&files.config_json)?,
    };
    let plan = Plan::new(&config).map_err(|error| match error {
        LoadError::Config(error) => LoadError::Metadata(error),
        other => other,
    })?;
    Ok(OpenModel { plan, tensors })
}

/// A model that is supported according to its configuration and the headers of its files. Its weights have
/// not been read yet.
pub struct OpenModel {
    plan: Plan,
    tensors: MappedTensors,
}

impl OpenModel {
    /// The metadata of a GGUF, from the header that was already read.
    pub fn metadata(&self) -> Option<Arc<Metadata>> {
        self.tensors.metadata()
    }

    /// The layers of a GGUF that follow the pooling of a text's hidden states.
    pub fn projections(&mut self) -> Result<Vec<Projection>, LoadError> {
        Projection::of_gguf(&mut self.tensors)
    }

    /// Loads it onto the device of the options.
    pub fn load(self, options: LoadOptions) -> Result<Box<dyn Engine>, LoadError> {
        Ok(match &options.device {
            Device::Cpu => {
                let kernels = Cpu::new(options.threads, options.ops)?;
                Box::new(Native::load(self, &options, kernels)?)
            }
            Device::Cuda(device) => Box::new(Native::load(self, &options, device.open()?)?),
        })
    }
}

/// A model on the device of `K`.
struct Native<K: Kernels> {
    info: ModelInfo,
    kernels: K,
    model: Box<dyn Forward<K>>,
    cache: K::Cache,
    pages: Pages,
    sequences: BTreeMap<SequenceId, Sequence>,
    max_sequences: usize,
    next_id: u64,
    /// Buffer for the rows of a pass.
    output: Output,
}

struct Sequence {
    /// Token t is in page t / PAGE_LEN; there are `pages_for(len)` pages.
    pages: Vec<u32>,
    len: usize,
    max_len: usize,
}

/// The results of a step's passes, slice by slice, and the number of values per slice.
struct Rows {
    numbers: Vec<f32>,
    lengths: Vec<usize>,
}

/// The part of a slice that a pass computes.
struct Piece {
    slice: usize,
    tokens: std::ops::Range<usize>,
}

impl<K: Kernels + 'static> Native<K> {
    fn load(opened: OpenModel, options: &LoadOptions, mut kernels: K) -> Result<Self, LoadError> {
        let OpenModel { plan, mut tensors } = opened;
        let shape = plan.shape();
        let encoder = plan.is_encoder();
        // An encoder's keys and values are not kept after the step, so their size hardly matters.
        let kv_type = if encoder { KvType::F32 } else { options.kv_type };
        let context_length = options.context_length.unwrap_or(usize::MAX).clamp(1, shape.context_length);
        let model = plan.build(&mut tensors, &mut kernels, context_length)?;

        let max_sequences = options.max_sequences.max(1);
        let longest = pages_for(context_length);
        let all = max_sequences.saturating_mul(longest);
        let pages = options.cache_tokens.map_or(all, |tokens| (tokens / PAGE_LEN).clamp(longest, all));
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let cache_shape = CacheShape {
            // The layers of an encoder share the same memory.
            layers: if encoder { 1 } else { shape.layers },
            pages: pages as usize,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            dtype: kv_type.dtype(),
        };
        let cache = kernels.cache(&cache_shape)?;
        let info = ModelInfo {
            architecture: shape.architecture,
            vocab_size: shape.vocab_size,
            context_length,
            embedding_length: shape.embedding_length,
            layers: shape.layers,
            encoder,
            embeds: true,
            pools: false,
            classes: plan.classes(),
            kv_bytes_per_token: cache_shape.bytes_per_token(),
            weights_bytes: tensors.taken_bytes(),
            device_bytes: kernels.device_bytes(),
            device: kernels.describe(),
        };
        let (pages, sequences) = (Pages::new(pages), BTreeMap::new());
        let output = Output::default();
        Ok(Self { info, kernels, model, cache, pages, sequences, max_sequences, next_id: 0, output })
    }

    /// Checks whether another sequence can be opened.
    fn admit(&self, max_len: usize) -> Result<(), AdmitError> {
        let context_length = self.info.context_length;
        if max_len > context_length {
            return Err(AdmitError::Context { wanted: max_len, context_length });
        }
        if self.sequences.len() >= self.max_sequences {
            return Err(AdmitError::Sequences { max_sequences: self.max_sequences });
        }
        Ok(())
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        id
    }

    fn check(&self, slices: &[Slice<'_>]) -> Result<(), StepError> {
        let lengths = |id| self.sequences.get(&id).map(|sequence| (sequence.len, sequence.max_len));
        check_slices(&self.info, lengths, slices)?;
        let growth: Vec<_> = slices.iter().map(|slice| (slice.sequence, slice.tokens.len())).collect();
        if self.has_space(&growth) { Ok(()) } else { Err(StepError::CacheFull) }
    }

    /// Number of pages that a sequence takes to grow by `more` tokens: new ones, and one for the copy of a shared last
    /// page.
    fn pages_to_grow(&self, id: SequenceId, more: usize) -> usize {
        let Some(sequence) = self.sequences.get(&id).filter(|_| more > 0) else { return 0 };
        let is_partial = !sequence.len.is_multiple_of(PAGE_LEN);
        let copies = sequence.pages.last().is_some_and(|last| is_partial && self.pages.is_shared(*last));
        pages_for(sequence.len.saturating_add(more)) - sequence.pages.len() + usize::from(copies)
    }

    /// Extends a sequence by `more` tokens. Copies a shared last page first, so that the new tokens are in
    /// pages of its own.
    fn extend(&mut self, id: SequenceId, more: usize) {
        let sequence = self.sequences.get_mut(&id).expect("the step was checked");
        if !sequence.len.is_multiple_of(PAGE_LEN) {
            let last = sequence.pages.last_mut().expect("a sequence with a partial page has pages");
            if self.pages.is_shared(*last) {
                let own = self.pages.take();
                self.kernels.copy_page(&mut self.cache, *last, own);
                self.pages.give_back(std::mem::replace(last, own));
            }
        }
        sequence.len += more;
        while sequence.pages.len() < pages_for(sequence.len) {
            sequence.pages.push(self.pages.take());
        }
    }

    /// Computes pieces, which are in slice order, and appends their requested rows to `rows`.
    fn pass(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
        pieces: &[Piece],
        rows: &mut Rows,
    ) -> Result<(), StepError> {
        let (mut batch, mut scored, mut types) = (Batch::default(), Vec::new(), Vec::new());
        for piece in pieces {
            let slice = &slices[piece.slice];
            let (first_row, start) = (batch.tokens.len(), self.len(slice.sequence));
            self.extend(slice.sequence, piece.tokens.len());
            let first_page = batch.pages.len();
            batch.pages.extend_from_slice(&self.sequences[&slice.sequence].pages);
            batch.spans.push(Span { first_row, rows: piece.tokens.len(), start, first_page });
            batch.tokens.extend_from_slice(&slice.tokens[piece.tokens.clone()]);
            batch.positions.extend((start..start + piece.tokens.len()).map(|t| t as u32));
            let (first_row, end) = (first_row as u32, batch.tokens.len() as u32);
            match slice.want {
                RowSelection::Nothing => {}
                RowSelection::Last if piece.tokens.end == slice.tokens.len() => batch.logits.push(end - 1),
                RowSelection::Last => {}
                RowSelection::All => batch.logits.extend(first_row..end),
                RowSelection::Hidden => batch.hidden.extend(first_row..end),
                // A model with classes is an encoder, so that the piece is the whole slice.
                RowSelection::Score { second } => {
                    scored.push(first_row);
                    types.resize(first_row as usize, 0);
                    types.extend((0..piece.tokens.len()).map(|at| u32::from(at >= second)));
                }
            }
        }
        types.resize(batch.tokens.len(), 0);
        self.output.logits.clear();
        self.output.hidden.clear();
        self.output.scores.clear();
        let (kernels, cache, output) = (&mut self.kernels, &mut self.cache, &mut self.output);
        let (batch, scored, types) = (&batch, &scored[..], &types[..]);
        self.model.forward(Pass { kernels, batch, scored, types, cache, output, is_cancelled })?;
        if is_cancelled() {
            return Err(StepError::Cancelled);
        }

        let Output { logits, hidden, scores } = &self.output;
        let (mut logits, mut hidden, mut scores) = (&logits[..], &hidden[..], &scores[..]);
        rows.numbers.reserve(logits.len() + hidden.len() + scores.len());
        for piece in pieces {
            let want = slices[piece.slice].want;
            let wanted = match want {
                RowSelection::Nothing => 0,
                RowSelection::Last => usize::from(piece.tokens.end == slices[piece.slice].tokens.len()),
                RowSelection::All | RowSelection::Hidden => piece.tokens.len(),
                RowSelection::Score { .. } => 1,
            };
            let from = match want {
                RowSelection::Hidden => &mut hidden,
                RowSelection::Score { .. } => &mut scores,
                RowSelection::Nothing | RowSelection::Last | RowSelection::All => &mut logits,
            };
            let (numbers, rest) = from.split_at(wanted * self.width(want));
            rows.numbers.extend_from_slice(numbers);
            rows.lengths[piece.slice] += numbers.len();
            *from = rest;
        }
        Ok(())
    }

    fn width(&self, want: RowSelection) -> usize {
        match want {
            RowSelection::Hidden => self.info.embedding_length,
            RowSelection::Score { .. } => self.info.classes.unwrap_or(1),
            RowSelection::Nothing | RowSelection::Last | RowSelection::All => self.info.vocab_size,
        }
    }
}

impl<K: Kernels + 'static> Engine for Native<K> {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, max_len: usize) -> Result<SequenceId, AdmitError> {
        self.admit(max_len)?;
        Ok(self.insert(Sequence { pages: Vec::new(), len: 0, max_len }))
    }

    fn close(&mut self, sequence: SequenceId) {
        if let Some(sequence) = self.sequences.remove(&sequence) {
            sequence.pages.iter().for_each(|page| self.pages.give_back(*page));
        }
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence)
            && len < sequence.len
        {
            sequence.len = len;
            let kept = pages_for(len).min(sequence.pages.len());
            sequence.pages.drain(kept..).for_each(|page| self.pages.give_back(page));
        }
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.sequences.get(&sequence).map_or(0, |s| s.len)
    }

    fn fork(&mut self, sequence: SequenceId, len: usize, max_len: usize) -> Result<SequenceId, AdmitError> {
        let source = self.sequences.get(&sequence).ok_or(AdmitError::UnknownSequence)?;
        let len = len.min(source.len);
        let mut pages = source.pages[..pages_for(len)].to_vec();
        let max_len = max_len.max(len);
        self.admit(max_len)?;
        let (whole, partial) = pages.split_at_mut(len / PAGE_LEN);
        if partial.len() > self.pages.free() {
            return Err(AdmitError::CacheFull);
        }
        whole.iter().for_each(|page| self.pages.share(*page));
        for page in partial {
            let own = self.pages.take();
            self.kernels.copy_page(&mut self.cache, *page, own);
            *page = own;
        }
        Ok(self.insert(Sequence { pages, len, max_len }))
    }

    fn has_space(&self, growth: &[(SequenceId, usize)]) -> bool {
        let pages = growth.iter().map(|&(id, more)| self.pages_to_grow(id, more));
        pages.fold(0, usize::saturating_add) <= self.pages.free()
    }

    fn step_unless(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError> {
        self.check(slices)?;
        let lengths: Vec<usize> = slices.iter().map(|slice| self.len(slice.sequence)).collect();
        let result = self.compute(is_cancelled, slices);
        if result.is_err() {
            for (slice, length) in slices.iter().zip(lengths) {
                self.truncate(slice.sequence, length);
            }
        }
        result
    }
}

impl<K: Kernels + 'static> Native<K> {
    /// Computes a step in passes of bounded size.
    fn compute(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError> {
        let mut rows = Rows { numbers: Vec::new(), lengths: vec![0; slices.len()] };
        let (mut pieces, mut free_rows, mut free_logits) = (Vec::new(), PASS_ROWS, PASS_LOGITS);
        for (index, slice) in slices.iter().enumerate() {
            let mut done = 0;
            while done < slice.tokens.len() {
                let mut n = free_rows.min(slice.tokens.len() - done);
                if slice.want == RowSelection::All {
                    n = n.min(free_logits);
                }
                if self.info.encoder && n < slice.tokens.len() {
                    // An encoder needs the whole slice in one pass, even if that is longer than `PASS_ROWS`.
                    n = if pieces.is_empty() { slice.tokens.len() } else { 0 };
                }
                if n == 0 {
                    self.pass(is_cancelled, slices, &std::mem::take(&mut pieces), &mut rows)?;
                    (free_rows, free_logits) = (PASS_ROWS, PASS_LOGITS);
                    continue;
                }
                pieces.push(Piece { slice: index, tokens: done..done + n });
                done += n;
                free_rows = free_rows.saturating_sub(n);
                let wanted = match slice.want {
                    RowSelection::All => n,
                    RowSelection::Last => usize::from(done == slice.tokens.len()),
                    RowSelection::Nothing | RowSelection::Hidden | RowSelection::Score { .. } => 0,
                };
                free_logits = free_logits.saturating_sub(wanted);
            }
        }
        if !pieces.is_empty() {
            self.pass(is_cancelled, slices, &pieces, &mut rows)?;
        }
        let Rows { numbers, lengths } = rows;
        let widths = slices.iter().map(|slice| self.width(slice.want));
        Ok(Logits::of(numbers, lengths.into_iter().zip(widths)))
    }
}
