//! Which worker gets a request: one that has the model loaded, then one that has it on disk, then the emptiest.
//! Pure, so that the order can be read off a table.

use std::cmp::Reverse;

use lode_model::digest::Digest;

use crate::app::Worker;

/// The workers, the best for this model first.
pub(crate) fn by_preference(mut workers: Vec<Worker>, digest: &Digest) -> Vec<Worker> {
    workers.sort_by_key(|worker| (distance(worker, digest), Reverse(free_bytes(worker))));
    workers
}

/// How far a worker is from running it: 0 loaded, 1 on disk, 2 neither.
fn distance(worker: &Worker, digest: &Digest) -> u8 {
    if worker.loaded.iter().any(|model| model.digest == *digest) {
        0
    } else if worker.cached.contains(digest) {
        1
    } else {
        2
    }
}

fn free_bytes(worker: &Worker) -> u64 {
    worker.devices.iter().fold(0, |sum, device| sum.saturating_add(device.free_bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};
    use uuid::Uuid;

    use super::*;
    use crate::app::{Device, LoadedModel};

    fn worker(version: &str, free_bytes: u64, loaded: &[&Digest], cached: &[&Digest]) -> Worker {
        let load = |digest: &&Digest| LoadedModel {
            repository: "m".parse().unwrap(),
            digest: (*digest).clone(),
            size_bytes: 1,
            more: Map::new(),
        };
        Worker {
            id: Uuid::nil(),
            advertise: "http://127.0.0.1:1".parse().unwrap(),
            version: version.to_owned(),
            devices: vec![Device { free_bytes, ..Device::default() }],
            loaded: loaded.iter().map(load).collect(),
            cached: cached.iter().map(|digest| (*digest).clone()).collect(),
            registered_at: 0,
            seen_at: 0,
            secret: json!(null).to_string(),
        }
    }

    #[test]
    fn loaded_then_cached_then_emptiest() {
        let (this, other) = (Digest::sha256(b"this"), Digest::sha256(b"other"));
        let workers = vec![
            worker("small", 1, &[], &[]),
            worker("big", 9, &[&other], &[&other]),
            worker("cached", 2, &[], &[&this]),
            worker("loaded", 0, &[&this], &[&this]),
            worker("loaded, roomier", 3, &[&this], &[&this]),
        ];
        let order: Vec<String> =
            by_preference(workers, &this).into_iter().map(|worker| worker.version).collect();
        assert_eq!(order, ["loaded, roomier", "loaded", "cached", "big", "small"]);
    }
}
