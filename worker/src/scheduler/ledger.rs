//! The ledger of the memory that this worker has promised to models, and of the number of models. Free memory
//! that is promised to a model is not available to another one, even while it is unused.

use std::collections::BTreeMap;

use lode_model::digest::Digest;

use super::memory::Estimate;

/// Identifies a promise, and the load it was made for.
pub(super) type LoadId = u64;

/// Bytes of memory that a runner uses now, without the files that it maps.
pub(super) type AnonymousBytes = Box<dyn Fn() -> u64 + Send + Sync>;

/// Memory promised to models that are loading, loaded, or being unloaded.
#[derive(Default)]
pub(super) struct MemoryLedger {
    promises: BTreeMap<LoadId, Promise>,
}

struct Promise {
    digest: Digest,
    /// Weights are mapped files: the kernel reports their pages as available whether they are resident or
    /// not.
    mapped_bytes: u64,
    /// The KV cache, activations, and the runner itself.
    anonymous_bytes: u64,
    /// How much of `anonymous_bytes` is resident, and so no longer reported as free.
    resident: Option<AnonymousBytes>,
    is_leaving: bool,
}

impl Promise {
    fn resident_bytes(&self) -> u64 {
        self.resident.as_ref().map_or(0, |resident| resident())
    }

    /// The part of the promise that the kernel still reports as free.
    fn outstanding_bytes(&self) -> u64 {
        self.mapped_bytes.saturating_add(self.anonymous_bytes.saturating_sub(self.resident_bytes()))
    }

    /// Bytes that become available once the model is unloaded.
    fn total_bytes(&self) -> u64 {
        self.mapped_bytes.saturating_add(self.anonymous_bytes.max(self.resident_bytes()))
    }
}

impl MemoryLedger {
    /// Promises a load its estimated memory.
    pub(super) fn promise(&mut self, id: LoadId, digest: &Digest, estimate: &Estimate) {
        let promise = Promise {
            digest: digest.clone(),
            mapped_bytes: estimate.weights_bytes,
            anonymous_bytes: estimate.needed().saturating_sub(estimate.weights_bytes),
            resident: None,
            is_leaving: false,
        };
        self.promises.insert(id, promise);
    }

    /// From now on, memory that the runner uses counts as used, no longer as promised.
    pub(super) fn attach(&mut self, id: LoadId, resident: AnonymousBytes) {
        if let Some(promise) = self.promises.get_mut(&id) {
            promise.resident = Some(resident);
        }
    }

    /// Records that the model is being unloaded: its memory is about to become available.
    pub(super) fn leave(&mut self, id: LoadId) {
        if let Some(promise) = self.promises.get_mut(&id) {
            promise.is_leaving = true;
        }
    }

    /// Ends a promise: the model is unloaded. Does nothing if it was released before.
    pub(super) fn release(&mut self, id: LoadId) {
        self.promises.remove(&id);
    }

    /// Number of models that have a promise.
    pub(super) fn len(&self) -> usize {
        self.promises.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.promises.is_empty()
    }

    pub(super) fn has_promise_for(&self, digest: &Digest) -> bool {
        self.promises.values().any(|promise| promise.digest == *digest)
    }

    /// The part of `free` bytes that is promised to no model.
    pub(super) fn available(&self, free: u64) -> u64 {
        self.promises.values().fold(free, |free, promise| free.saturating_sub(promise.outstanding_bytes()))
    }

    /// Bytes that would be available if every model were unloaded.
    pub(super) fn without_models(&self, free: u64) -> u64 {
        self.promises.values().fold(free, |free, promise| free.saturating_add(promise.resident_bytes()))
    }

    /// Bytes that become available once this model is unloaded.
    pub(super) fn total_of(&self, id: LoadId) -> u64 {
        self.promises.get(&id).map_or(0, Promise::total_bytes)
    }

    /// The number of models being unloaded, and the bytes that become available once they are.
    pub(super) fn leaving(&self) -> (usize, u64) {
        let leaving = self.promises.values().filter(|promise| promise.is_leaving);
        leaving.fold((0, 0), |(count, bytes), promise| {
            (count + 1, u64::saturating_add(bytes, promise.total_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(weights_bytes: u64, step_bytes: u64) -> Estimate {
        Estimate { weights_bytes, step_bytes, ..Estimate::default() }
    }

    #[test]
    fn promised_memory_is_not_available() {
        let overhead = estimate(0, 0).needed();
        let mut ledger = MemoryLedger::default();
        let free = 10_000 + 2 * overhead;
        ledger.promise(1, &Digest::sha256(b"a"), &estimate(1000, 500));
        assert_eq!(ledger.available(free), 10_000 + overhead - 1500);
        // The runner has touched its overhead and half of its cache: the kernel reports less free memory, but
        // the available memory is unchanged.
        let resident = overhead + 250;
        ledger.attach(1, Box::new(move || resident));
        assert_eq!(ledger.available(free - resident), 10_000 + overhead - 1500);
        assert_eq!(ledger.total_of(1), 1500 + overhead);
        assert_eq!(ledger.without_models(free - resident), free);
        ledger.promise(2, &Digest::sha256(b"b"), &estimate(100, 0));
        assert_eq!(ledger.available(free - resident), 10_000 - 1600);
        assert_eq!(ledger.leaving(), (0, 0));
        ledger.leave(1);
        assert_eq!(ledger.leaving(), (1, 1500 + overhead));
        ledger.release(1);
        ledger.release(1);
        assert!(ledger.len() == 1 && !ledger.has_promise_for(&Digest::sha256(b"a")));
        assert_eq!(ledger.available(0), 0);
    }
}
