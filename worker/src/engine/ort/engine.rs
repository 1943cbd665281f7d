//! The engine of a graph in the runtime: its sequences, and the steps over them. What a slice needs is computed by
//! the kind of graph.

use std::sync::Arc;

use ::ort::session::Session;

use super::super::{AdmitError, Engine, Logits, ModelInfo, SequenceId, Slice, StepError, check_slices};
use super::sequences::Sequences;

/// The values of the rows that a slice requests, and the state of its sequence after it.
pub(super) type Computed<S> = (Vec<f32>, S);

/// A kind of graph.
pub(super) trait Graph: Send {
    /// What is kept of the tokens of a sequence.
    type State: Clone + Default + Send;

    /// The number of values in a row.
    fn width(&self) -> usize;

    /// Called before each step with all open sequences.
    fn prepare(&self, _: &mut Sequences<Self::State>, _: &[Slice<'_>]) {}

    /// Computes slices that were checked.
    fn compute(
        &self,
        session: &mut Session,
        sequences: &Sequences<Self::State>,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Vec<Computed<Self::State>>, StepError>;
}

/// A graph in the runtime.
pub(super) struct Ort<G: Graph> {
    pub(super) info: ModelInfo,
    pub(super) session: Session,
    pub(super) graph: G,
    pub(super) sequences: Sequences<G::State>,
    /// Initializers from other files, to which the session may refer.
    pub(super) _data: Vec<Arc<[u8]>>,
}

impl<G: Graph> Engine for Ort<G> {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, max_len: usize) -> Result<SequenceId, AdmitError> {
        self.sequences.open(max_len)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.close(sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        self.sequences.truncate(sequence, len);
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.sequences.get(sequence).map_or(0, |sequence| sequence.len)
    }

    fn fork(&mut self, sequence: SequenceId, len: usize, max_len: usize) -> Result<SequenceId, AdmitError> {
        self.sequences.fork(sequence, len, max_len)
    }

    /// The states of sequences are tensors of the runtime, not parts of one cache.
    fn has_space(&self, _growth: &[(SequenceId, usize)]) -> bool {
        true
    }

    fn step_unless(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError> {
        check_slices(&self.info, |id| self.sequences.lengths(id), slices)?;
        self.graph.prepare(&mut self.sequences, slices);
        let computed = self.graph.compute(&mut self.session, &self.sequences, is_cancelled, slices)?;
        let mut logits = Logits::default();
        for (slice, (rows, state)) in slices.iter().zip(computed) {
            self.sequences.append(slice.sequence, slice.tokens.len(), state);
            logits.push_slice(&rows, self.graph.width());
        }
        Ok(logits)
    }
}
