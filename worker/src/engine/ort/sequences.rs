//! The open sequences of an engine that runs a graph.

use std::collections::BTreeMap;

use super::super::{AdmitError, SequenceId};

/// The open sequences, each with the state `S` that the engine keeps of its tokens.
pub(super) struct Sequences<S> {
    open: BTreeMap<SequenceId, Sequence<S>>,
    max_sequences: usize,
    context_length: usize,
    next_id: u64,
}

pub(super) struct Sequence<S> {
    pub(super) len: usize,
    max_len: usize,
    pub(super) state: S,
}

impl<S: Clone + Default> Sequences<S> {
    /// At most `max_sequences` (at least one) of at most `context_length` tokens.
    pub(super) fn new(max_sequences: usize, context_length: usize) -> Sequences<S> {
        let max_sequences = max_sequences.max(1);
        Sequences { open: BTreeMap::new(), max_sequences, context_length, next_id: 0 }
    }

    pub(super) fn open(&mut self, max_len: usize) -> Result<SequenceId, AdmitError> {
        self.insert(0, max_len, S::default())
    }

    /// Opens a sequence with the state of another, of which it keeps the first `len` tokens.
    pub(super) fn fork(
        &mut self,
        source: SequenceId,
        len: usize,
        max_len: usize,
    ) -> Result<SequenceId, AdmitError> {
        let source = self.get(source).ok_or(AdmitError::UnknownSequence)?;
        let (len, state) = (len.min(source.len), source.state.clone());
        self.insert(len, max_len.max(len), state)
    }

    fn insert(&mut self, len: usize, max_len: usize, state: S) -> Result<SequenceId, AdmitError> {
        let (max_sequences, context_length) = (self.max_sequences, self.context_length);
        if max_len > context_length {
            return Err(AdmitError::Context { wanted: max_len, context_length });
        }
        if self.open.len() >= max_sequences {
            return Err(AdmitError::Sequences { max_sequences });
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.open.insert(id, Sequence { len, max_len, state });
        Ok(id)
    }

    pub(super) fn close(&mut self, id: SequenceId) {
        self.open.remove(&id);
    }

    /// Keeps the first `len` tokens. The state is dropped with the last token.
    pub(super) fn truncate(&mut self, id: SequenceId, len: usize) {
        if let Some(sequence) = self.open.get_mut(&id) {
            sequence.len = sequence.len.min(len);
            if sequence.len == 0 {
                sequence.state = S::default();
            }
        }
    }

    pub(super) fn get(&self, id: SequenceId) -> Option<&Sequence<S>> {
        self.open.get(&id)
    }

    /// The length of a sequence and its maximum.
    pub(super) fn lengths(&self, id: SequenceId) -> Option<(usize, usize)> {
        self.get(id).map(|sequence| (sequence.len, sequence.max_len))
    }

    /// Calls `change` with each sequence: its id, its length, and the state to change.
    pub(super) fn update(&mut self, change: impl Fn(SequenceId, usize, &mut S)) {
        for (id, sequence) in &mut self.open {
            change(*id, sequence.len, &mut sequence.state);
        }
    }

    /// Appends `tokens` tokens to a sequence, which then has this state.
    pub(super) fn append(&mut self, id: SequenceId, tokens: usize, state: S) {
        if let Some(sequence) = self.open.get_mut(&id) {
            sequence.len += tokens;
            sequence.state = state;
        }
    }
}
