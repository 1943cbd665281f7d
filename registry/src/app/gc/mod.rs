//! The collection: what nothing references any more goes after its grace, while pushes and reads go on.
//! It follows what lost a reference and never scans what did not (retention rules look at the repositories they name); a push
//! that races with it wins, and each removal leaves a record of why.

mod plan;
mod removals;
mod retention;
mod undo;

use std::time::{Duration, Instant};

use lode_model::reference::Repository;
use serde::Serialize;
use tokio::sync::MutexGuard;

use super::jobs::JobControl;
use super::{Registry, again, detached};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::error::chain;
use crate::metrics;
use crate::store::{self, Doomed, Place, Reason, Turn, Unreferenced, Why, now_ms};

pub use removals::{Removal, RemovalPage};
pub use undo::Restored;

/// How many rows one transaction changes: few enough that pushes do not wait for it.
const BATCH: i64 = 500;

/// How many blobs are deleted at a time: a push of one of them waits for all.
const BURY_BATCH: i64 = 100;

/// How often a long collection logs how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

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
    /// Records of earlier removals that expired, and blobs that these kept for an undo.
    #[serde(skip_serializing_if = "is_zero")]
    pub records: u64,
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
        detached(async move { this.gc_controlled(dry_run, &JobControl::default()).await }).await
    }

    /// Runs a collection for a caller that the policy has already allowed. The future must not be dropped: a cancelled collection ends at its next checkpoint.
    pub(crate) async fn gc_controlled(&self, dry_run: bool, control: &JobControl) -> Result<GcReport, Error> {
        if dry_run {
            // It only reads and takes no lock.
            control.note("looking for what would be removed", 0, None);
            return tokio::select! {
                report = self.gc_now(true, control) => report,
                () = control.cancelled() => Err(Error::Cancelled),
            };
        }
        control.note("waiting for a running collection or check", 0, None);
        let _turn = tokio::select! {
            turn = self.gc_turn() => turn?,
            () = control.cancelled() => return Err(Error::Cancelled),
        };
        self.gc_now(false, control).await
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
            this.gc_now(false, &JobControl::default()).await.map(drop)
        })
        .await
    }

    /// The turn of the one collection among all replicas. Two at once would do no harm, but count and wait for each other.
    pub(super) async fn gc_turn(&self) -> Result<(MutexGuard<'_, ()>, Turn), Error> {
        let here = self.collecting.lock().await;
        Ok((here, self.store.turn(TURN).await?))
    }

    /// As another replica's collection that does not end.
    #[cfg(test)]
    pub(crate) async fn gc_turn_for_test(&self) -> MutexGuard<'_, ()> {
        self.collecting.lock().await
    }

    async fn gc_now(&self, dry_run: bool, control: &JobControl) -> Result<GcReport, Error> {
        let now = now_ms();
        let run = Run {
            now,
            cutoff: now.saturating_sub(store::millis(self.config.gc_grace)),
            undo_until: now.saturating_add(self.undo_ms()),
        };
        let started = Instant::now();
        let outcome = if dry_run { self.gc_plan(run).await } else { self.gc_all(run, control).await };
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

    async fn gc_all(&self, run: Run, control: &JobControl) -> Result<GcReport, Error> {
        let mut report = GcReport::default();
        // 1. What the rules do not keep.
        control.checkpoint("applying retention rules", 0)?;
        self.gc_retention(run, control, &mut report).await?;
        // 2. Manifests whose tag or index went, and that nothing else wants. An index lets go of its children, so this is
        //    repeated for as long as it finds something.
        let (mut place, mut before) = (Place::default(), 0);
        loop {
            control.checkpoint("removing manifests", report.manifests)?;
            let candidates = self.store.manifests_unreferenced(run.cutoff, &place, BATCH).await?;
            report.manifests += again!(self.gc_manifests(run, &candidates.found).await)?;
            match candidates.next {
                Some(next) => place = next,
                None if report.manifests == before => break,
                None => (before, place) = (report.manifests, Place::default()),
            }
        }
        // 3. Links that no manifest of their repository names, and repositories that hold nothing.
        let mut place = Some(Place::default());
        while let Some(after) = place {
            control.checkpoint("removing links", report.links)?;
            let candidates = self.store.links_unreferenced(run.cutoff, &after, BATCH).await?;
            report.links += again!(self.gc_links(run, &candidates.found).await)?;
            place = candidates.next;
        }
        self.gc_repositories(control).await?;
        // 4. Blobs that no repository links become tombstones.
        let mut place = Some(Place::default());
        while let Some(after) = place {
            control.checkpoint("releasing blobs", 0)?;
            let candidates = self.store.blobs_unlinked(run.cutoff, &after, BATCH).await?;
            again!(self.gc_condemn(&candidates.found, run).await)?;
            place = candidates.next;
        }
        // 5. The bytes of tombstones are deleted, also of those that a crash left, and then the tombstones. Bytes that cannot be
        //    deleted do not keep others; the error is returned at the end.
        let kept = self.gc_tombstones(control, &mut report).await?;
        // 6. Records that are old enough. Last, because no space depends on them.
        self.gc_records(run, control, &mut report).await?;
        kept.map_or(Ok(report), Err)
    }

    /// Deletes the bytes of tombstones. Returns the last error of those that could not be deleted.
    async fn gc_tombstones(
        &self,
        control: &JobControl,
        report: &mut GcReport,
    ) -> Result<Option<Error>, Error> {
        let (mut after, mut kept) = (String::new(), None);
        loop {
            control.checkpoint("deleting bytes", report.blobs)?;
            let doomed = self.store.tombstones(&after, BURY_BATCH).await?;
            let Some(last) = doomed.last() else { break };
            after.clone_from(&last.store_key);
            if self.gc_bury(&doomed, report).await.is_err() {
                kept = self.gc_bury_apart(&doomed, report).await?.or(kept);
            }
        }
        Ok(kept)
    }

    /// Deletes records of removals that are old enough, in batches: a collection that is cut short has made progress, and the next
    /// one continues.
    async fn gc_records(&self, run: Run, control: &JobControl, report: &mut GcReport) -> Result<(), Error> {
        let cutoff = run.now.saturating_sub(store::millis(self.config.gc_history));
        let (mut records, mut logged) = (0, Instant::now());
        let count = |rows| {
            records += rows;
            control.note("deleting expired records of removals", records, None);
            if logged.elapsed() >= PROGRESS_INTERVAL {
                logged = Instant::now();
                tracing::info!(records, "deleting expired records of removals");
            }
        };
        let expired = self.store.removals_expire(cutoff, count).await;
        report.records += records;
        expired
    }

    /// Forgets repositories that hold nothing.
    async fn gc_repositories(&self, control: &JobControl) -> Result<(), Error> {
        let mut after = String::new();
        loop {
            control.checkpoint("removing empty repositories", 0)?;
            let repositories = self.store.repositories_emptiness(&after, BATCH).await?;
            let Some((last, _)) = repositories.last() else { return Ok(()) };
            after = last.as_str().to_owned();
            let empty: Vec<Repository> =
                repositories.into_iter().filter(|(_, is_empty)| *is_empty).map(|(name, _)| name).collect();
            if !empty.is_empty() {
                again!(self.gc_forget(&empty).await)?;
            }
        }
    }

    async fn gc_forget(&self, repositories: &[Repository]) -> Result<(), Error> {
        let mut tx = self.store.begin().await?;
        tx.repositories_collect(repositories).await?;
        tx.commit().await
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

    /// Removes those of these manifests that still nothing names; returns how many.
    async fn gc_manifests(&self, run: Run, candidates: &[Unreferenced]) -> Result<u64, Error> {
        if candidates.is_empty() {
            return Ok(0);
        }
        let mut tx = self.store.begin().await?;
        tx.repositories_lock(candidates.iter().map(|(repository, ..)| repository)).await?;
        let free = tx.manifests_recheck(candidates, run.cutoff).await?;
        let gone = self.manifests_take_away(&mut tx, &free, &run.why(Reason::Unreferenced)).await?;
        tx.commit().await?;
        Ok(gone)
    }

    /// Removes those of these links that are still past their grace and lease; returns how many.
    async fn gc_links(&self, run: Run, candidates: &[Unreferenced]) -> Result<u64, Error> {
        if candidates.is_empty() {
            return Ok(0);
        }
        let mut tx = self.store.begin().await?;
        // The blobs' rows first, then the repositories: the order in which a push locks them.
        let free = tx.blobs_take(candidates.iter().map(|(_, digest, _)| digest)).await?;
        let candidates: Vec<Unreferenced> =
            candidates.iter().filter(|(_, digest, _)| free.contains(digest.as_str())).cloned().collect();
        tx.repositories_lock(candidates.iter().map(|(repository, ..)| repository)).await?;
        let gone = tx.links_collect(&candidates, run.cutoff).await?;
        tx.commit().await?;
        Ok(gone)
    }

    async fn gc_condemn(&self, blobs: &[Doomed], run: Run) -> Result<(), Error> {
        if blobs.is_empty() {
            return Ok(());
        }
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
        tx.tombstones_bury(doomed).await?;
        tx.commit().await
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
