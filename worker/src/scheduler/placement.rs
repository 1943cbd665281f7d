//! Decides which queued loads get memory and which loaded models are evicted for them. All decisions are made
//! together whenever something changes, under one lock and without waiting, in the queue's order of arrival.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lode_model::digest::Digest;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::ledger::{LoadId, MemoryLedger};
use super::loaded::{LoadedModel, User};
use super::memory::{Estimate, Memory, fits_comfortably};
use super::requirements::ModelRequirements;
use crate::error::Error;

/// Loaded models and the loads that wait for memory or a model slot.
#[derive(Default)]
pub(super) struct State {
    pub(super) loaded: HashMap<Digest, Arc<LoadedModel>>,
    pub(super) ledger: MemoryLedger,
    pub(super) is_stopping: bool,
    /// In order of arrival.
    queue: Vec<QueuedLoad>,
    last_id: LoadId,
}

/// A load that waits for memory and for one of the model slots.
struct QueuedLoad {
    id: LoadId,
    wanted: ModelRequirements,
    estimate: Estimate,
    since: Instant,
    decision: Option<Decision>,
    decided: Arc<Notify>,
}

/// The outcome of a queued load.
pub(super) enum Decision {
    /// Memory has been promised under the load's id.
    Start,
    /// The model has been loaded meanwhile.
    Existing(User),
    Refuse(Error),
}

/// Limits that decisions depend on, in addition to the state.
pub(super) struct Limits {
    pub(super) max_loaded_models: usize,
    /// A model in use is not evicted within this time after it was loaded or after another load was queued.
    pub(super) eviction_delay: Duration,
}

/// Memory and model slots that the rest of the queue can use.
struct Supply {
    bytes: u64,
    slots: usize,
}

impl Supply {
    fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.slots += 1;
    }

    fn subtract(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.slots = self.slots.saturating_sub(1);
    }

    fn can_fit(&self, bytes: u64) -> bool {
        self.slots > 0 && fits_comfortably(bytes, self.bytes)
    }
}

impl State {
    pub(super) fn enqueue(&mut self, wanted: ModelRequirements, estimate: Estimate) -> (LoadId, Arc<Notify>) {
        self.last_id += 1;
        let decided = Arc::new(Notify::new());
        self.queue.push(QueuedLoad {
            id: self.last_id,
            wanted,
            estimate,
            since: Instant::now(),
            decision: None,
            decided: decided.clone(),
        });
        (self.last_id, decided)
    }

    /// Removes a load from the queue if it has been decided.
    pub(super) fn take_decision(&mut self, id: LoadId) -> Option<Decision> {
        let at = self.queue.iter().position(|load| load.id == id && load.decision.is_some())?;
        self.queue.remove(at).decision
    }

    /// Removes a load that is no longer wanted from the queue and releases its promise.
    pub(super) fn cancel(&mut self, id: LoadId) {
        let before = self.queue.len();
        self.queue.retain(|load| load.id != id);
        if self.queue.len() < before {
            self.ledger.release(id);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.queue.iter().any(|load| load.decision.is_none())
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Refuses every queued load.
    pub(super) fn refuse_all(&mut self, error: impl Fn() -> Error) {
        for load in &mut self.queue {
            load.decide(Decision::Refuse(error()));
        }
    }

    /// Removes an idle model; the caller stops its runner.
    pub(super) fn remove_idle(&mut self, model: &Arc<LoadedModel>) -> bool {
        let is_it = self.loaded.get(model.digest()).is_some_and(|other| Arc::ptr_eq(other, model));
        if !is_it || !model.is_idle() {
            return false;
        }
        self.ledger.leave(model.load_id());
        self.loaded.remove(model.digest());
        true
    }

    /// Makes every decision that is possible now. Returns the removed models, whose runners the caller stops.
    pub(super) fn place(&mut self, memory: Memory, limits: &Limits, now: Instant) -> Vec<Arc<LoadedModel>> {
        let mut queue = std::mem::take(&mut self.queue);
        let (leaving_count, leaving_bytes) = self.ledger.leaving();
        let mut available = Supply {
            bytes: self.ledger.available(memory.free_bytes),
            slots: limits.max_loaded_models.saturating_sub(self.ledger.len()),
        };
        // Memory and slots that are or will be available, minus those for the loads ahead in the queue.
        let mut expected = Supply {
            bytes: available.bytes.saturating_add(leaving_bytes),
            slots: available.slots + leaving_count,
        };
        let at_most = self.ledger.without_models(memory.free_bytes);
        let mut victims = Victims { chosen: HashSet::new(), limits, now };

        for load in queue.iter_mut().filter(|load| load.decision.is_none()) {
            let needed = load.estimate.needed();
            let digest = &load.wanted.digest;
            let present = self.loaded.get(digest).filter(|_| !victims.chosen.contains(digest)).cloned();
            match &present {
                Some(model) if model.has_context_for(&load.wanted) && model.is_alive() => {
                    load.decide(Decision::Existing(User::new(model.clone())));
                    continue;
                }
                _ if needed > at_most => {
                    load.decide(Decision::Refuse(Error::Memory { needed, available: at_most }));
                    continue;
                }
                // The same model with a shorter context has to be unloaded first.
                Some(model) if victims.is_due(model, load) => {
                    expected.add(victims.add_victim(model, &self.ledger));
                }
                Some(_) => continue,
                None => {}
            }
            while !expected.can_fit(needed) {
                let Some(victim) = victims.next(self.loaded.values(), load) else { break };
                expected.add(victims.add_victim(&victim, &self.ledger));
            }
            let is_alone = self.ledger.is_empty() && needed <= available.bytes;
            let has_room = (available.can_fit(needed) && expected.can_fit(needed)) || is_alone;
            if has_room && !self.ledger.has_promise_for(digest) {
                self.ledger.promise(load.id, digest, &load.estimate);
                available.subtract(needed);
                load.decide(Decision::Start);
            }
            expected.subtract(needed);
        }
        self.queue = queue;

        let mut to_stop = Vec::new();
        let models: Vec<_> = self.loaded.values().cloned().collect();
        for model in models {
            let is_victim = victims.chosen.contains(model.digest());
            model.set_draining(is_victim);
            if is_victim && self.remove_idle(&model) {
                to_stop.push(model);
            }
        }
        to_stop
    }
}

impl QueuedLoad {
    fn decide(&mut self, decision: Decision) {
        self.decision.get_or_insert(decision);
        self.decided.notify_one();
    }
}

/// The models to be evicted.
struct Victims<'a> {
    chosen: HashSet<Digest>,
    limits: &'a Limits,
    now: Instant,
}

impl Victims<'_> {
    /// A model in use stays for a minimum time, so that models requested alternately are not reloaded all the
    /// time.
    fn is_due(&self, model: &LoadedModel, load: &QueuedLoad) -> bool {
        let settled =
            |since: Instant| self.now.saturating_duration_since(since) >= self.limits.eviction_delay;
        model.is_idle() || (settled(load.since) && settled(model.loaded_at()))
    }

    /// The idle model that was used least recently; without one, the model in use that was loaded first.
    fn next<'m>(
        &self,
        loaded: impl Iterator<Item = &'m Arc<LoadedModel>>,
        load: &QueuedLoad,
    ) -> Option<Arc<LoadedModel>> {
        let candidates =
            loaded.filter(|model| !self.chosen.contains(model.digest()) && self.is_due(model, load));
        let rank = |model: &&Arc<LoadedModel>| match model.is_idle() {
            true => (false, model.last_used()),
            false => (true, model.loaded_at()),
        };
        candidates.min_by_key(rank).cloned()
    }

    /// Returns the bytes that become available.
    fn add_victim(&mut self, model: &LoadedModel, ledger: &MemoryLedger) -> u64 {
        self.chosen.insert(model.digest().clone());
        ledger.total_of(model.load_id())
    }
}
