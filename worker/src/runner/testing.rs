//! An engine without a model, for tests: the next id is a pure function of all ids so far. The batch loop's
//! use of slots, pieces and prefixes must not affect any result.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use crate::engine::{AdmitError, Engine, Logits, ModelInfo, RowSelection, SequenceId, Slice, StepError};
use crate::text::Tokenizer;

pub(crate) const VOCAB: usize = 4096;
/// Width of a hidden state.
pub(crate) const HIDDEN: usize = 8;
/// The demo model's end-of-sequence id.
pub(crate) const EOS: u32 = 2;
/// A step with this id fails with an error of its sequence.
pub(crate) const POISON: u32 = 4000;
/// The logits after this id are NaN.
pub(crate) const NAN: u32 = 4001;
/// A step with this id fails with a device error.
pub(crate) const BREAK: u32 = 4002;
/// A step with this id runs until it is cancelled.
pub(crate) const ENDLESS: u32 = 4004;
/// A step with this id panics.
pub(crate) const PANIC: u32 = 4003;

/// The tokens of each slice of each step.
pub(crate) type StepLog = Arc<Mutex<Vec<Vec<usize>>>>;

pub(crate) struct FakeEngine {
    info: ModelInfo,
    sequences: HashMap<SequenceId, Vec<u32>>,
    next: u64,
    max_sequences: usize,
    /// Number of tokens that all sequences together may have.
    pub(crate) cache_tokens: usize,
    /// The fixed output for every prompt, if not empty.
    pub(crate) script: Vec<u32>,
    pub(crate) log: StepLog,
}

impl FakeEngine {
    pub(crate) fn new(context_length: usize, max_sequences: usize) -> FakeEngine {
        let info = ModelInfo {
            architecture: "fake",
            vocab_size: VOCAB,
            context_length,
            embedding_length: HIDDEN,
            layers: 1,
            encoder: false,
            embeds: true,
            pools: false,
            classes: None,
            kv_bytes_per_token: 16,
            weights_bytes: 1000,
            device_bytes: 0,
            device: "test".into(),
        };
        let (sequences, script) = (HashMap::new(), Vec::new());
        let cache_tokens = max_sequences * context_length;
        FakeEngine { info, sequences, next: 0, max_sequences, cache_tokens, script, log: StepLog::default() }
    }

    fn row(&self, ids: &[u32]) -> Vec<f32> {
        if self.script.is_empty() {
            return row(ids);
        }
        let sent = (0..=self.script.len()).rev().find(|&len| ids.ends_with(&self.script[..len]));
        let next = self.script.get(sent.unwrap_or(0)).copied().unwrap_or(EOS);
        let mut row = vec![0.0; VOCAB];
        row[next as usize] = 30.0;
        row
    }
}

/// The row of logits after `ids`.
pub(crate) fn row(ids: &[u32]) -> Vec<f32> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for id in ids {
        hash = (hash ^ u64::from(*id)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 29;
    let mut row: Vec<f32> =
        (0..VOCAB).map(|id| ((hash.wrapping_mul(id as u64 | 1) >> 40) % 100) as f32 / 100.0).collect();
    // Ordinary tokens, and sometimes the end-of-sequence id.
    let best = if hash.is_multiple_of(41) { u64::from(EOS) } else { 300 + hash % 3000 };
    row[best as usize] = 6.0;
    if ids.last() == Some(&NAN) {
        row.fill(f32::NAN);
    }
    row
}

/// The hidden state after `ids`.
pub(crate) fn hidden(ids: &[u32]) -> Vec<f32> {
    row(ids)[..HIDDEN].to_vec()
}

/// The greedy output for a prompt, without the end-of-sequence id.
pub(crate) fn greedy_output(prompt: &[u32], num_predict: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    while ids.len() < prompt.len() + num_predict {
        let id = crate::text::sampler::argmax(&row(&ids)).unwrap();
        if id == EOS {
            break;
        }
        ids.push(id);
    }
    ids.split_off(prompt.len())
}

impl Engine for FakeEngine {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, max_len: usize) -> Result<SequenceId, AdmitError> {
        if max_len > self.info.context_length {
            return Err(AdmitError::Context { wanted: max_len, context_length: self.info.context_length });
        }
        if self.sequences.len() >= self.max_sequences {
            return Err(AdmitError::Sequences { max_sequences: self.max_sequences });
        }
        self.next += 1;
        self.sequences.insert(SequenceId(self.next), Vec::new());
        Ok(SequenceId(self.next))
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        if let Some(ids) = self.sequences.get_mut(&sequence) {
            ids.truncate(len);
        }
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.sequences.get(&sequence).map_or(0, Vec::len)
    }

    fn fork(&mut self, sequence: SequenceId, len: usize, max_len: usize) -> Result<SequenceId, AdmitError> {
        let mut ids = self.sequences.get(&sequence).ok_or(AdmitError::UnknownSequence)?.clone();
        ids.truncate(len);
        if !self.has_space(&[(sequence, ids.len())]) {
            return Err(AdmitError::CacheFull);
        }
        let fork = self.open(max_len)?;
        self.sequences.insert(fork, ids);
        Ok(fork)
    }

    fn has_space(&self, growth: &[(SequenceId, usize)]) -> bool {
        let used: usize = self.sequences.values().map(Vec::len).sum();
        used + growth.iter().map(|(_, more)| more).sum::<usize>() <= self.cache_tokens
    }

    fn step_unless(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError> {
        let growth: Vec<_> = slices.iter().map(|slice| (slice.sequence, slice.tokens.len())).collect();
        if !self.has_space(&growth) {
            return Err(StepError::CacheFull);
        }
        if slices.iter().any(|slice| slice.tokens.contains(&ENDLESS)) {
            while !is_cancelled() {
                std::thread::yield_now();
            }
            return Err(StepError::Cancelled);
        }
        let max_len = self.info.context_length;
        for slice in slices {
            let sequence = slice.sequence;
            let len = self.sequences.get(&sequence).ok_or(StepError::UnknownSequence(sequence))?.len();
            if len + slice.tokens.len() > max_len {
                return Err(StepError::TooLong { sequence, len: len + slice.tokens.len(), max_len });
            }
            if slice.tokens.contains(&POISON) {
                return Err(StepError::TokenOutOfRange { sequence, token: POISON, vocab_size: VOCAB });
            }
            assert!(!slice.tokens.contains(&PANIC), "step with the panic id");
            if slice.tokens.contains(&BREAK) {
                return Err(StepError::Device(broken_device()));
            }
        }
        self.log.lock().unwrap().push(slices.iter().map(|slice| slice.tokens.len()).collect());
        let mut logits = Logits::default();
        for slice in slices {
            let mut ids = self.sequences.remove(&slice.sequence).unwrap();
            let mut rows = Vec::new();
            for &token in slice.tokens {
                ids.push(token);
                match slice.want {
                    RowSelection::All => rows.extend(self.row(&ids)),
                    RowSelection::Hidden => rows.extend(hidden(&ids)),
                    RowSelection::Nothing | RowSelection::Last | RowSelection::Score { .. } => {}
                }
            }
            if slice.want == RowSelection::Last {
                rows.extend(self.row(&ids));
            }
            self.sequences.insert(slice.sequence, ids);
            let width = if slice.want == RowSelection::Hidden { HIDDEN } else { VOCAB };
            logits.push_slice(&rows, width);
        }
        Ok(logits)
    }
}

/// An engine whose steps wait for a permit each, until the sender of permits is dropped.
pub(crate) struct Gated {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) permits: Receiver<()>,
    /// The number of steps that have begun.
    pub(crate) begun: Arc<AtomicUsize>,
    pub(crate) log: StepLog,
}

impl Engine for Gated {
    fn info(&self) -> &ModelInfo {
        self.engine.info()
    }

    fn open(&mut self, max_len: usize) -> Result<SequenceId, AdmitError> {
        self.engine.open(max_len)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.engine.close(sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        self.engine.truncate(sequence, len);
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.engine.len(sequence)
    }

    fn fork(&mut self, sequence: SequenceId, len: usize, max_len: usize) -> Result<SequenceId, AdmitError> {
        self.engine.fork(sequence, len, max_len)
    }

    fn has_space(&self, growth: &[(SequenceId, usize)]) -> bool {
        self.engine.has_space(growth)
    }

    fn step_unless(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _ = self.permits.recv();
        let result = self.engine.step_unless(is_cancelled, slices);
        // A cancelled step computed nothing.
        let done = if result.is_ok() { slices } else { &[] };
        self.log.lock().unwrap().push(done.iter().map(|slice| slice.tokens.len()).collect());
        result
    }
}

fn broken_device() -> lode_kernels::DeviceError {
    lode_kernels::DeviceError::OutOfMemory { what: "a test", wanted_bytes: 1 }
}

pub(crate) fn demo_file(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/../tests/models/lode-demo/{name}", env!("CARGO_MANIFEST_DIR")))
}

pub(crate) fn demo_tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_json(&std::fs::read(demo_file("tokenizer.json")).unwrap()).unwrap())
}
