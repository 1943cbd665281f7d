//! The collection: what nothing references any more goes after its grace, while pushes and reads go on.
//! It follows what lost a reference and never scans what did not (retention rules look at the repositories they name); a push
//! that races with it wins, and each removal leaves a record of why.

mod plan;
mod removals;
mod retention;
mod undo;

use std::time::Instant;

use serde::Serialize;
use tokio::sync::MutexGuard;

use super::{Registry, again, detached};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::error::chain;
use crate::metrics;
use crate::store::{self, Doomed, Place, Reason, Turn, Why, now_ms};

pub use removals::{Removal, RemovalPage};
pub use undo::Restored;

/// How many rows one transaction looks at: few enough that pushes do not wait for it.
const BATCH: i64 = 100;

/// After so many in a row whose bytes cannot be removed, the rest is left to the next run.
const GIVE_UP_AFTER: u32 = 3;

/// The name of the turn that replicas take.
const TURN: &str = "collection";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Nothing was changed; the rest is what would have been.
    pub dry_run: bool,
    /// Tags that a retention rule took.
    pub tags: u64,
    pub manifests: u64,
    /// Blobs taken out of a repository.
    pub links: u64,
    /// Blobs whose bytes went.
    pub blobs: u64,
    pub size_bytes: u64,
    /// What would go and why, of a dry run: the first 10,000. A real run's are kept in the index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<Removal>,
}

/// The times that one run goes by.
#[derive(Clone, Copy)]
struct Run {
    now: i64,
    /// What lost its last reference after this stays.
    cutoff: i64,
    /// Until when what goes now can come back.
    undo_until: i64,
}

impl Run {
    fn why(&self, reason: Reason) -> Why {
        Why { reason, at: self.now, undo_until: self.undo_until }
    }
}

impl Registry {
    /// Runs one collection, after the one that may be running, here or on another replica.
    pub async fn gc_run(&self, caller: &Caller, dry_run: bool) -> Result<GcReport, Error> {
        allow(caller, Action::Administer, Target::Server)?;
        if !dry_run {
            self.may_write()?;
        }
        let this = self.clone();
        detached(async move {
            if dry_run {
                // It only reads, and holds nobody up.
                return this.gc_now(true).await;
            }
            let _turn = this.gc_turn().await?;
            this.gc_now(false).await
        })
        .await
    }

    /// Runs one collection, unless one is running.
    pub(crate) async fn gc_scheduled(&self) -> Result<(), Error> {
        let this = self.clone();
        detached(async move {
            let Ok(_here) = this.collecting.try_lock() else { return Ok(()) };
            let Some(_turn) = this.store.turn_try(TURN).await? else {
                tracing::debug!("another replica is collecting");
                return Ok(());
            };
            this.gc_now(false).await.map(drop)
        })
        .await
    }

    /// The turn of the one collection among all replicas. Two at once would do no harm, but count and wait for each other.
    pub(super) async fn gc_turn(&self) -> Result<(MutexGuard<'_, ()>, Turn), Error> {
        let here = self.collecting.lock().await;
        Ok((here, self.store.turn(TURN).await?))
    }

    async fn gc_now(&self, dry_run: bool) -> Result<GcReport, Error> {
        let now = now_ms();
        let run = Run {
            now,
            cutoff: now.saturating_sub(store::millis(self.config.gc_grace)),
            undo_until: now.saturating_add(self.undo_ms()),
        };
        let started = Instant::now();
        let outcome = if dry_run { self.gc_plan(run).await } else { self.gc_all(run).await };
        if !dry_run {
            metrics::collection(&outcome, started.elapsed());
        }
        let report = outcome?;
        tracing::info!(
            dry_run,
            tags = report.tags,
            manifests = report.manifests,
            links = report.links,
            blobs = report.blobs,
            size_bytes = report.size_bytes,
            "collection done"
        );
        Ok(report)
    }

    /// How long what was removed can come back.
    fn undo_ms(&self) -> i64 {
        store::millis(self.config.gc_undo.unwrap_or(self.config.gc_grace))
    }

    /// Why something goes that was asked for just now.
    pub(super) fn why_deleted(&self) -> Why {
        let now = now_ms();
        Why { reason: Reason::Deleted, at: now, undo_until: now.saturating_add(self.undo_ms()) }
    }

    /// The same of a blob, which does not come back: it can be pushed again.
    pub(super) fn why_blob_deleted(&self) -> Why {
        let why = self.why_deleted();
        Why { undo_until: why.at, ..why }
    }

    async fn gc_all(&self, run: Run) -> Result<GcReport, Error> {
        let mut report = GcReport::default();
        // 1. What the rules do not keep.
        self.gc_retention(run, &mut report).await?;
        // 2. Manifests whose tag or index went, and that nothing else wants. An index lets go of its children, so this is
        //    repeated for as long as it finds something.
        let (mut place, mut before) = (Place::default(), 0);
        loop {
            match again!(self.gc_manifests(run, &place, &mut report).await)? {
                Some(next) => place = next,
                None if report.manifests == before => break,
                None => (before, place) = (report.manifests, Place::default()),
            }
        }
        // 3. Links that no manifest of their repository names, and repositories that hold nothing.
        let mut place = Some(Place::default());
        while let Some(after) = place {
            place = again!(self.gc_links(run, &after, &mut report).await)?;
        }
        for repository in &self.store.repositories_empty().await? {
            let mut tx = self.store.begin().await?;
            tx.repository_collect(repository).await?;
            tx.commit().await?;
        }
        // 4. Blobs that no repository links become tombstones.
        let mut after = String::new();
        loop {
            let blobs = self.store.blobs_unlinked(run.cutoff, &after, BATCH).await?;
            let Some(last) = blobs.last() else { break };
            after = last.digest.as_str().to_owned();
            again!(self.gc_condemn(&blobs, run).await)?;
        }
        // 5. Records that are old enough.
        let history = store::millis(self.config.gc_history);
        self.store.removals_expire(run.now.saturating_sub(history)).await?;
        // 6. The bytes of tombstones go, also of those that a crash left, and then the tombstones. Bytes that cannot be removed
        //    must not keep others from going; they are told of in the end.
        let (mut after, mut kept) = (String::new(), None);
        loop {
            let doomed = self.store.tombstones(&after, BATCH).await?;
            let Some(last) = doomed.last() else { break };
            after.clone_from(&last.store_key);
            if self.gc_bury(&doomed, &mut report).await.is_err() {
                kept = self.gc_bury_apart(&doomed, &mut report).await?.or(kept);
            }
        }
        kept.map_or(Ok(report), Err)
    }

    /// As `gc_bury`, one at a time, and says what went wrong with the last that could not go. Where none can, the storage is away.
    async fn gc_bury_apart(&self, doomed: &[Doomed], report: &mut GcReport) -> Result<Option<Error>, Error> {
        let (mut kept, mut in_a_row) = (None, 0);
        for blob in doomed {
            match self.gc_bury(std::slice::from_ref(blob), report).await {
                Ok(()) => in_a_row = 0,
                Err(error) if in_a_row == GIVE_UP_AFTER => return Err(error),
                Err(error) => {
                    in_a_row += 1;
                    tracing::warn!(key = blob.store_key, error = chain(&error), "bytes cannot be removed");
                    kept = Some(error);
                }
            }
        }
        Ok(kept)
    }

    /// Removes the next manifests past their grace; returns where to go on, if there may be more.
    async fn gc_manifests(
        &self,
        run: Run,
        after: &Place,
        report: &mut GcReport,
    ) -> Result<Option<Place>, Error> {
        let candidates = self.store.manifests_unreferenced(run.cutoff, after, BATCH).await?;
        let next =
            candidates.last().map(|(repository, digest, _)| place(repository.as_str(), digest.as_str()));
        let why = run.why(Reason::Unreferenced);
        let mut gone = 0;
        let mut tx = self.store.begin().await?;
        for (repository, digest, at) in candidates {
            tx.repository_lock(&repository).await?;
            if !tx.manifest_lock(&repository, &digest, run.cutoff).await? {
                continue;
            }
            if tx.manifest_is_named(&repository, &digest).await? {
                tx.manifest_keep(&repository, &digest).await?;
            } else if !tx.manifest_has_subject(&repository, &digest).await?
                && !tx.link_is_leased(&repository, &digest).await?
                && self.manifest_take_away(&mut tx, &repository, &digest, at, &why).await?
            {
                gone += 1;
            }
        }
        tx.commit().await?;
        report.manifests += gone;
        Ok(next)
    }

    /// Removes the next links past their grace and lease; returns where to go on, if there may be more.
    async fn gc_links(&self, run: Run, after: &Place, report: &mut GcReport) -> Result<Option<Place>, Error> {
        let candidates = self.store.links_unreferenced(run.cutoff, after, BATCH).await?;
        let next =
            candidates.last().map(|(repository, digest, _)| place(repository.as_str(), digest.as_str()));
        let mut gone = 0;
        let mut tx = self.store.begin().await?;
        // The blobs' rows first, then the repository: the order in which a push takes them.
        let free = tx.blobs_take(candidates.iter().map(|(_, digest, _)| digest)).await?;
        for (repository, digest, at) in candidates.iter().filter(|(_, d, _)| free.contains(d.as_str())) {
            tx.repository_lock(repository).await?;
            if tx.link_collect(repository, digest, run.cutoff).await? {
                // The repository let go of it when its last manifest did, so that the grace is not waited for twice.
                tx.blob_unlinked(digest, *at).await?;
                gone += 1;
            }
        }
        tx.commit().await?;
        report.links += gone;
        Ok(next)
    }

    async fn gc_condemn(&self, blobs: &[Doomed], run: Run) -> Result<(), Error> {
        let mut tx = self.store.begin().await?;
        // Bytes do not come back: what needs them keeps them from getting here.
        let why = Why { undo_until: run.now, ..run.why(Reason::Unreferenced) };
        tx.blobs_condemn(blobs, run.cutoff, &why).await?;
        tx.commit().await
    }

    /// Bytes away, then tombstones away: wherever it is cut short, the next run finds what is left to do.
    async fn gc_bury(&self, doomed: &[Doomed], report: &mut GcReport) -> Result<(), Error> {
        // In the folder a blob's key is its digest's own, and a commit that takes a deletion back waits, or was here first. It
        // holds one of these locks and waits for no other, so that this cannot deadlock. Elsewhere new bytes have a new key.
        let mut turns = Vec::with_capacity(doomed.len());
        for blob in doomed {
            if turns.iter().all(|(digest, _)| *digest != blob.digest) {
                turns.push((blob.digest.clone(), self.digests.lock(blob.digest.clone()).await));
            }
        }
        let doomed = self.store.tombstones_still(doomed).await?;

        let keys = doomed.iter().map(|blob| blob.store_key.clone()).collect();
        let guards = turns.iter().map(|(_, lock)| lock.guard()).collect();
        self.blobs.remove(keys, guards).await?;

        again!(self.gc_buried(&doomed).await)?;
        for blob in &doomed {
            report.blobs += 1;
            report.size_bytes += blob.size_bytes;
        }
        Ok(())
    }

    async fn gc_buried(&self, doomed: &[Doomed]) -> Result<(), Error> {
        let mut tx = self.store.begin().await?;
        for blob in doomed {
            tx.tombstone_bury(blob).await?;
        }
        tx.commit().await
    }
}

fn place(repository: &str, digest: &str) -> Place {
    (repository.to_owned(), digest.to_owned())
}
