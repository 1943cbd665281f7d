//! Counts of pulls. A pull counts once for each caller, repository and hour, in the memory of this process, so that no request
//! waits for the database. A task adds the counts to the database; those of several replicas add up. A process that is
//! killed loses the pulls since the last time. No caller is stored.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lode_model::reference::Repository;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use uuid::Uuid;

use super::Registry;
use super::rate_limits::network_of;
use super::registry::retry_on_deadlock;
use crate::auth::{Action, Caller, Identity, Target};
use crate::error::chain;
use crate::store::{PullTotals, RECENT_DAYS, today};
use crate::{Error, metrics};

/// Other pulls of a repository by the same caller do not count in this time.
const REPEAT_TIME: Duration = Duration::from_secs(3600);
/// How many pairs of a caller and a repository are remembered. Beyond that the oldest ones are forgotten, and their next pull
/// counts again.
const MAX_REMEMBERED: u64 = 100_000;
/// How many repositories wait for the database. The pulls of others are not counted.
const MAX_WAITING: usize = 10_000;
const WRITE_INTERVAL: Duration = Duration::from_secs(10);
/// How many repositories a transaction locks and changes.
const BATCH: usize = 32;
/// How long a stopping server writes the counts that wait.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How many days counts by day are kept.
const HISTORY_DAYS: i64 = 365;
const EXPIRE_INTERVAL: Duration = Duration::from_secs(3600);
/// How many counts one statement deletes.
const EXPIRE_BATCH: i64 = 1000;

/// The pulls that this process has counted.
pub(super) struct PullCounter {
    /// Hashes of callers with a repository.
    seen: Cache<u64, ()>,
    hasher: RandomState,
    waiting: Mutex<WaitingPulls>,
}

/// The pulls that are not in the database yet.
#[derive(Default)]
struct WaitingPulls {
    counts: BTreeMap<Repository, u64>,
    /// Pulls that were not counted, because too many repositories were waiting.
    dropped: u64,
}

/// Whose pulls of a repository count once.
#[derive(Hash)]
enum Puller {
    Account(Uuid),
    /// `None`: a request without a connection.
    Network(Option<IpAddr>),
}

impl Default for PullCounter {
    fn default() -> PullCounter {
        PullCounter::new(MAX_REMEMBERED, REPEAT_TIME)
    }
}

impl PullCounter {
    fn new(max_remembered: u64, repeat_time: Duration) -> PullCounter {
        let seen = Cache::builder()
            .max_capacity(max_remembered)
            .eviction_policy(EvictionPolicy::lru())
            .time_to_live(repeat_time);
        PullCounter { seen: seen.build(), hasher: RandomState::new(), waiting: Mutex::default() }
    }

    /// Whether this pull counts.
    fn is_first(&self, puller: &Puller, repository: &Repository) -> bool {
        self.seen.entry(self.hasher.hash_one((puller, repository))).or_insert(()).is_fresh()
    }

    fn add(&self, repository: &Repository, pulls: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let has_space = waiting.counts.len() < MAX_WAITING;
        match waiting.counts.get_mut(repository) {
            Some(count) => *count += pulls,
            None if has_space => drop(waiting.counts.insert(repository.clone(), pulls)),
            None => waiting.dropped += pulls,
        }
    }

    fn take(&self) -> WaitingPulls {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The pulls of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PullHistory {
    pub(crate) totals: PullTotals,
    /// Of the last [`RECENT_DAYS`], the oldest first.
    pub(crate) days: Vec<u64>,
    /// The last one of them, in days since 1970.
    pub(crate) today: i64,
}

impl Registry {
    /// Counts a pull, unless it is one of a worker or of this server itself, or the caller has pulled the repository just now.
    pub(crate) fn count_pull(&self, caller: &Caller, repository: &Repository) {
        let puller = match &caller.identity {
            Identity::Internal | Identity::Worker { .. } => return,
            Identity::Account(account) => Puller::Account(account.id),
            Identity::Anonymous | Identity::Guest { .. } => Puller::Network(network_of(caller)),
        };
        if !self.pulls.is_first(&puller, repository) {
            return;
        }
        metrics::record_pull();
        if !self.config.read_only {
            self.pulls.add(repository, 1);
        }
    }

    /// Adds the counts that wait to the database, and deletes those of old days, while the registry runs.
    pub(crate) fn start_counting_pulls(&self) {
        let this = self.clone();
        // It ends on its own when the registry stops, once it has written the counts that wait.
        self.start_draining(async move {
            while this.stopping().run_until_cancelled(tokio::time::sleep(WRITE_INTERVAL)).await.is_some() {
                if let Err(error) = this.write_pulls().await {
                    tracing::warn!(error = chain(&error), "failed to write counts of pulls; will retry");
                }
            }
            match tokio::time::timeout(STOP_TIMEOUT, this.write_pulls()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = chain(&error), "failed to write counts of pulls; they are lost");
                }
                Err(_) => tracing::warn!("the server stopped before all pulls were counted"),
            }
        });
        let this = self.clone();
        self.start(async move {
            loop {
                if let Err(error) = this.expire_pulls().await {
                    tracing::warn!(error = chain(&error), "failed to delete old counts of pulls; will retry");
                }
                tokio::time::sleep(EXPIRE_INTERVAL).await;
            }
        });
    }

    /// Adds the counts that wait to the database. After an error those of the failed transaction are written again: if the
    /// database has committed it although its response was lost, they count twice.
    pub(crate) async fn write_pulls(&self) -> Result<(), Error> {
        let WaitingPulls { counts, dropped } = self.pulls.take();
        if dropped > 0 {
            tracing::warn!(pulls = dropped, "pulls not counted: too many repositories wait for the database");
        }
        let counts: Vec<(Repository, u64)> = counts.into_iter().collect();
        for (nth, batch) in counts.chunks(BATCH).enumerate() {
            if let Err(error) = retry_on_deadlock!(self.store.pulls_add(batch).await) {
                for (repository, pulls) in &counts[nth * BATCH..] {
                    self.pulls.add(repository, *pulls);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    pub(crate) async fn expire_pulls(&self) -> Result<(), Error> {
        let first_kept = today() - HISTORY_DAYS;
        while self.store.pulls_expire(first_kept, EXPIRE_BATCH).await? == EXPIRE_BATCH as u64 {}
        Ok(())
    }

    /// The pulls of a repository, which the caller may read.
    pub(crate) async fn pull_history(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<PullHistory, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let totals = self.store.pull_totals(repository).await?;
        self.check_repository_exists(repository, totals.all_time == 0).await?;
        let today = today();
        let before = today - RECENT_DAYS;
        let counted: BTreeMap<i64, u64> =
            self.store.pull_days(repository, before).await?.into_iter().collect();
        let days = (1..=RECENT_DAYS).map(|day| counted.get(&(before + day)).copied().unwrap_or_default());
        Ok(PullHistory { totals, days: days.collect(), today })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn puller(at: u8) -> Puller {
        Puller::Network(Some([192, 0, 2, at].into()))
    }

    #[test]
    fn a_repetition_counts_again_after_a_while() {
        let (counter, repository) = (PullCounter::new(10, Duration::from_millis(50)), "a".parse().unwrap());
        assert!(counter.is_first(&puller(1), &repository));
        std::thread::sleep(Duration::from_millis(60));
        assert!(counter.is_first(&puller(1), &repository));
        let (counter, other) = (PullCounter::default(), "b".parse().unwrap());
        let first: Vec<bool> =
            [(1, &repository), (1, &repository), (2, &repository), (1, &other), (2, &repository)]
                .map(|(at, repository)| counter.is_first(&puller(at), repository))
                .into();
        assert_eq!(first, [true, false, true, true, false]);
    }

    #[test]
    fn few_callers_are_remembered() {
        let (counter, repository) = (PullCounter::new(2, REPEAT_TIME), "a".parse().unwrap());
        for at in 0..100 {
            assert!(counter.is_first(&puller(at), &repository), "new callers always count");
        }
        counter.seen.run_pending_tasks();
        assert!(counter.seen.entry_count() <= 2);
        assert!(!counter.is_first(&puller(99), &repository), "the last one is remembered");
        assert!(counter.is_first(&puller(0), &repository), "the first one was forgotten");

        for at in 0..=MAX_WAITING {
            counter.add(&format!("r{at}").parse().unwrap(), 2);
        }
        counter.add(&"r0".parse().unwrap(), 1);
        let WaitingPulls { counts, dropped } = counter.take();
        assert_eq!((counts.len(), counts[&"r0".parse().unwrap()], dropped), (MAX_WAITING, 3, 2));
        assert!(counter.take().counts.is_empty());
    }
}
