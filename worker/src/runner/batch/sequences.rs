//! Which job uses which sequence of the cache, and which one gives up its space if the cache is full.

use super::super::commands::Command;
use super::super::jobs::RequestId;
use super::super::protocol::RunnerError;
use super::super::slot::{Slot, Work};
use super::BatchLoop;
use crate::engine::{AdmitError, SequenceId, StepError};

/// A shared prefix shorter than this is recomputed rather than copied from another sequence.
const MIN_FORK: usize = 16;

impl BatchLoop {
    /// Frees a sequence for a request that has none, by suspending one text of a request that embeds several.
    pub(super) fn preempt_embedding(&mut self, request: RequestId) -> bool {
        if self.count_sequences(request) > 0 {
            return false;
        }
        let has_several =
            |slot: &Slot| matches!(slot.work, Work::Embed(_)) && self.count_sequences(slot.request) > 1;
        let candidates = (0..self.slots.len()).filter(|&at| has_several(&self.slots[at]));
        // The sequence that loses the least work.
        let Some(at) = candidates.min_by_key(|&at| self.slots[at].cached.len()) else { return false };
        let Some(job) = self.slots[at].suspend() else { return false };
        self.waiting.push_front(job);
        true
    }

    /// Whether the cache has space for all jobs and for one that is about to begin in slot `at`. Idle sequences lose
    /// theirs for it, and so do generations whose reader does not keep up. A job begins in any case if no other is in
    /// progress.
    pub(super) fn has_room(&mut self, at: usize, command: &Command) -> bool {
        loop {
            let growth = |(index, slot): (usize, &Slot)| {
                let length = if index == at { command.length_soon() } else { slot.length_soon() };
                (slot.sequence, length.saturating_sub(slot.cached.len()))
            };
            let growth: Vec<_> = self.slots.iter().enumerate().map(growth).collect();
            if self.engine.has_space(&growth) || self.count_in_progress() == 0 {
                return true;
            }
            if !self.empty_idle_sequence(Some(at)) && !self.suspend_stalled() {
                return false;
            }
        }
    }

    /// Suspends a generation whose reader does not keep up, so that others can use its space. False if there is none.
    pub(super) fn suspend_stalled(&mut self) -> bool {
        let Some(stalled) = self.slots.iter_mut().find(|slot| slot.is_stalled()) else { return false };
        self.waiting.extend(stalled.suspend());
        true
    }

    /// Frees the space of the idle sequence that was used least recently. False if none has any.
    fn empty_idle_sequence(&mut self, except: Option<usize>) -> bool {
        let idle = (0..self.slots.len()).filter(|&at| {
            let slot = &self.slots[at];
            Some(at) != except && slot.is_idle() && !slot.cached.is_empty()
        });
        let Some(oldest) = idle.min_by_key(|&at| self.slots[at].last_used) else { return false };
        self.truncate(oldest, 0);
        true
    }

    /// Frees space for the next step, which did not fit.
    pub(super) fn free_space(&mut self) {
        if self.empty_idle_sequence(None) || self.suspend_stalled() {
            return;
        }
        let in_progress = (0..self.slots.len()).filter(|&at| !self.slots[at].is_idle());
        let Some(last) = in_progress.max_by_key(|&at| self.slots[at].last_used) else { return };
        if self.count_in_progress() == 1 {
            self.slots[last].fail(RunnerError::failed(StepError::CacheFull));
            return;
        }
        tracing::debug!(tokens = self.slots[last].cached.len(), "the KV cache is full: suspended a job");
        if let Some(job) = self.slots[last].suspend() {
            self.waiting.push_front(job);
        }
        self.truncate(last, 0);
    }

    /// Returns a slot whose sequence shares the longest prefix with the prompt; `None` if all are in use.
    pub(super) fn assign_sequence(&mut self, prompt: &[u32]) -> Result<Option<usize>, AdmitError> {
        // The last token is always computed, because its logits are needed.
        let reusable = &prompt[..prompt.len().saturating_sub(1)];
        let common = |slot: &Slot| common_prefix(&slot.cached, reusable);
        let is_idle = Slot::is_idle;
        let best = (0..self.slots.len()).max_by_key(|&at| {
            let slot = &self.slots[at];
            (common(slot), is_idle(slot), std::cmp::Reverse(slot.last_used))
        });
        let oldest_idle = |skip: Option<usize>| {
            let idle = (0..self.slots.len()).filter(|&at| Some(at) != skip && is_idle(&self.slots[at]));
            idle.min_by_key(|&at| self.slots[at].last_used)
        };
        let has_room = self.slots.len() < self.num_parallel;
        let shared = best.map_or(0, |best| common(&self.slots[best]));
        if let Some(best) = best
            && shared >= MIN_FORK
        {
            let slot = &self.slots[best];
            // Reuse it in place if no other conversation loses its cache by that.
            let in_place = is_idle(slot)
                && (shared * 2 >= slot.cached.len() || (!has_room && oldest_idle(Some(best)).is_none()));
            if in_place {
                self.truncate(best, shared);
                return Ok(Some(best));
            }
            if has_room || oldest_idle(Some(best)).is_some() {
                let source = slot.sequence;
                if !has_room && let Some(victim) = oldest_idle(Some(best)) {
                    self.close(victim);
                }
                let max_len = self.engine.info().context_length;
                if let Ok(sequence) = self.engine.fork(source, shared, max_len) {
                    return Ok(Some(self.add_slot(sequence, prompt[..shared].to_vec())));
                }
            }
        }
        if self.slots.len() < self.num_parallel {
            match self.engine.open(self.engine.info().context_length) {
                Ok(sequence) => return Ok(Some(self.add_slot(sequence, Vec::new()))),
                Err(error) if self.slots.is_empty() => return Err(error),
                // Reuse an idle one, or wait.
                Err(_) => {}
            }
        }
        let idle = (0..self.slots.len()).filter(|&at| self.slots[at].is_idle());
        let Some(oldest) = idle.min_by_key(|&at| self.slots[at].last_used) else { return Ok(None) };
        let keep = common_prefix(&self.slots[oldest].cached, reusable);
        self.truncate(oldest, keep);
        Ok(Some(oldest))
    }

    fn add_slot(&mut self, sequence: SequenceId, cached: Vec<u32>) -> usize {
        self.slots.push(Slot {
            sequence,
            cached,
            pending: Vec::new(),
            last_used: self.clock,
            request: RequestId::default(),
            work: Work::Idle,
        });
        self.slots.len() - 1
    }

    pub(super) fn close(&mut self, slot: usize) {
        let slot = self.slots.swap_remove(slot);
        self.engine.close(slot.sequence);
    }

    pub(super) fn truncate(&mut self, slot: usize, len: usize) {
        let slot = &mut self.slots[slot];
        slot.cached.truncate(len);
        self.engine.truncate(slot.sequence, slot.cached.len());
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
