//! The records of the audit log that wait for the database, and those that need not be repeated.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lode_model::digest::Digest;
use moka::sync::Cache;
use tokio::sync::mpsc;

use crate::store::AuditRow;

/// The same refusal or sign-in is recorded once in this time.
const REPEAT_TIME: Duration = Duration::from_secs(60);
/// How many different refusals of one actor are recorded in this time.
pub(super) const MAX_DIFFERENT: u32 = 20;
/// The same pull is recorded once in this time.
const PULL_TIME: Duration = Duration::from_secs(3600);
/// How many repetitions are remembered.
const MAX_REPEATS: u64 = 100_000;
/// How many records wait for the database. More are dropped, each with a line in the server's log.
pub(super) const QUEUE: usize = 1000;

/// What this process remembers for the audit log.
pub(super) struct AuditQueue {
    /// By the digest of what makes them the same, because clients choose parts of it.
    pub(super) refusals: Cache<Digest, ()>,
    /// How many different refusals of an actor were recorded.
    pub(super) different: Cache<Digest, Arc<AtomicU32>>,
    pub(super) pulls: Cache<Digest, ()>,
    pub(super) sender: mpsc::Sender<AuditRow>,
    /// Until the task that writes them starts.
    pub(super) receiver: Mutex<Option<mpsc::Receiver<AuditRow>>>,
}

impl Default for AuditQueue {
    fn default() -> AuditQueue {
        let (sender, receiver) = mpsc::channel(QUEUE);
        AuditQueue {
            refusals: Cache::builder().max_capacity(MAX_REPEATS).time_to_live(REPEAT_TIME).build(),
            different: Cache::builder().max_capacity(MAX_REPEATS).time_to_live(REPEAT_TIME).build(),
            pulls: Cache::builder().max_capacity(MAX_REPEATS).time_to_live(PULL_TIME).build(),
            sender,
            receiver: Mutex::new(Some(receiver)),
        }
    }
}
