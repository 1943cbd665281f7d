//! Garbage collection: unreferenced content is deleted after its grace period, while pushes and reads
//! continue. It follows content that lost a reference and never scans the rest (retention rules read the
//! repositories that they name). A concurrent push wins, and each removal leaves a record of its reason.

mod plan;
mod preview;
mod removals;
mod retention;
mod run;
mod undo;
mod waiting;

use std::time::{Duration, Instant};

use lode_model::reference::Repository;
use tokio::sync::MutexGuard;

use super::job_control::JobControl;
use super::{Registry, detached, retry_on_deadlock};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::blobs::BlobLocation;
use crate::error::chain;
use crate::metrics;
use crate::store::{RemovalCause, RemovalReason, ReplicaLock, TimeCursor, UnreferencedContent};
use crate::time::{millis, now_ms};

pub(crate) use preview::{RetentionPreview, RetentionRemovals};
pub use removals::{Removal, RemovalPage};
pub use run::GcReport;
use run::{BATCH, RunTimes};
pub use undo::RestoredContent;
pub use waiting::GcWaiting;

/// How many blobs are deleted at a time. A push of one of them waits for all.
const DELETE_BATCH: i64 = 100;

/// How long the time is kept at which a tag was last compared with its upstream.
const MIRROR_CHECK_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// How often a long collection logs its progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// After this many consecutive failures to delete bytes, the rest is left to the next run.
const MAX_CONSECUTIVE_FAILURES: u32 = 3;

/// The name of the lock that replicas take.
const COLLECTION_LOCK: &str = "collection";

impl Registry {
    /// Runs one collection, after any that is running on this or another replica.
    pub async fn gc_run(&self, caller: &Caller, dry_run: bool) -> Result<GcReport, Error> {
        self.authorize(caller, Action::Administer, Target::Server).await?;
        if !dry_run {
            self.check_writable()?;
        }
        let this = self.clone();
        detached(async move { this.gc_controlled(dry_run, &JobControl::default()).await }).await
    }

    /// Runs a collection for a caller that the policy has already allowed. The future must not be dropped: a
    /// cancelled collection ends at its next checkpoint.
    pub(crate) async fn gc_controlled(&self, dry_run: bool, control: &JobControl) -> Result<GcReport, Error> {
        if dry_run {
            // It only reads and takes no lock.
            control.report_progress("searching for removals", 0, None);
            return tokio::select! {
                report = self.gc_now(true, control) => report,
                () = control.cancelled() => Err(Error::Cancelled),
            };
        }
        control.report_progress("waiting for a running collection or check", 0, None);
        let _turn = tokio::select! {
            turn = self.gc_lock() => turn?,
            () = control.cancelled() => return Err(Error::Cancelled),
        };
        self.gc_now(false, control).await
    }

    /// Runs one collection, unless one is running.
    pub(crate) async fn gc_scheduled(&self) -> Result<(), Error> {
        let this = self.clone();
        detached(async move {
            let Ok(_here) = this.collecting.try_lock() else { return Ok(()) };
            let Some(_turn) = this.store.replica_lock_try(COLLECTION_LOCK).await? else {
                tracing::debug!("another replica is collecting");
                return Ok(());
            };
            this.gc_now(false, &JobControl::default()).await.map(drop)
        })
        .await
    }

    /// Takes the lock of the collection among all replicas. Two concurrent collections would be harmless, but
    /// would wait for each other and count each other's removals.
    pub(super) async fn gc_lock(&self) -> Result<(MutexGuard<'_, ()>, ReplicaLock), Error> {
        let here = self.collecting.lock().await;
        Ok((here, self.store.replica_lock(COLLECTION_LOCK).await?))
    }

    /// Simulates another replica's collection that does not end.
    #[cfg(test)]
    pub(crate) async fn gc_lock_for_test(&self) -> MutexGuard<'_, ()> {
        self.collecting.lock().await
    }

    async fn gc_now(&self, dry_run: bool, control: &JobControl) -> Result<GcReport, Error> {
        let now = now_ms();
        let run = RunTimes {
            now,
            cutoff: now.saturating_sub(millis(self.config.gc_grace)),
            undo_until: now.saturating_add(self.undo_ms()),
        };
        let started = Instant::now();
        let outcome = if dry_run { self.gc_plan(run).await } else { self.gc_all(run, control).await };
        if !dry_run {
            metrics::record_collection(
                outcome.as_ref().ok().map(GcReport::removed_objects),
                started.elapsed(),
            );
        }
        let report = outcome?;
        tracing::info!(
            dry_run,
            tags = report.tags,
            manifests = report.manifests,
            links = report.links,
            blobs = report.blobs,
            size_bytes = report.size_bytes,
            "garbage collection finished"
        );
        Ok(report)
    }

    /// How long a removal can be undone.
    fn undo_ms(&self) -> i64 {
        millis(self.config.gc_undo.unwrap_or(self.config.gc_grace))
    }

    /// The cause of a removal that a client requests now.
    pub(super) fn deletion_cause(&self, caller: &Caller) -> RemovalCause {
        let now = now_ms();
        RemovalCause {
            reason: RemovalReason::Deleted,
            actor: caller.actor(),
            at: now,
            undo_until: now.saturating_add(self.undo_ms()),
        }
    }

    /// Like `deletion_cause`, for a blob. It cannot be restored, because it can be pushed again.
    pub(super) fn blob_deletion_cause(&self, caller: &Caller) -> RemovalCause {
        let why = self.deletion_cause(caller);
        RemovalCause { undo_until: why.at, ..why }
    }

    async fn gc_all(&self, run: RunTimes, control: &JobControl) -> Result<GcReport, Error> {
        let mut report = GcReport::default();
        // 1. Apply the retention rules.
        control.checkpoint("applying retention rules", 0)?;
        self.gc_retention(run, control, &mut report).await?;
        // 2. Remove manifests that lost their tag or index and that nothing else references. Removing an
        //    index releases its children, so this repeats until it finds nothing.
        let (mut place, mut before) = (TimeCursor::default(), 0);
        loop {
            control.checkpoint("removing manifests", report.manifests)?;
            let candidates = self.store.manifests_unreferenced(run.cutoff, &place, BATCH).await?;
            report.manifests += retry_on_deadlock!(self.gc_manifests(run, &candidates.found).await)?;
            match candidates.next {
                Some(next) => place = next,
                None if report.manifests == before => break,
                None => (before, place) = (report.manifests, TimeCursor::default()),
            }
        }
        self.gc_models(control).await?;
        // 3. Remove links that no manifest of their repository names, and empty repositories.
        let mut place = Some(TimeCursor::default());
        while let Some(after) = place {
            control.checkpoint("removing links", report.links)?;
            let candidates = self.store.links_unreferenced(run.cutoff, &after, BATCH).await?;
            report.links += retry_on_deadlock!(self.gc_links(run, &candidates.found).await)?;
            place = candidates.next;
        }
        self.gc_repositories(control).await?;
        // 4. Blobs that no repository links become tombstones.
        let mut place = Some(TimeCursor::default());
        while let Some(after) = place {
            control.checkpoint("releasing blobs", 0)?;
            let candidates = self.store.blobs_unlinked(run.cutoff, &after, BATCH).await?;
            retry_on_deadlock!(self.gc_tombstone_blobs(&candidates.found, run).await)?;
            place = candidates.next;
        }
        // 5. Delete the bytes of tombstones, including those left by a crash, and then the tombstones. A
        //    failed deletion does not prevent others; its error is returned at the end.
        let kept = self.gc_tombstones(control, &mut report).await?;
        // 6. Delete old records. Last, because no space depends on them.
        self.gc_records(run, control, &mut report).await?;
        kept.map_or(Ok(report), Err)
    }

    /// Deletes the bytes of tombstones. Returns the last error of the failed deletions.
    async fn gc_tombstones(
        &self,
        control: &JobControl,
        report: &mut GcReport,
    ) -> Result<Option<Error>, Error> {
        let (mut after, mut kept) = (String::new(), None);
        loop {
            control.checkpoint("deleting bytes", report.blobs)?;
            let tombstones = self.store.tombstones(&after, DELETE_BATCH).await?;
            let Some(last) = tombstones.last() else { break };
            after.clone_from(&last.store_key);
            if self.gc_delete_bytes(&tombstones, report).await.is_err() {
                kept = self.gc_delete_bytes_singly(&tombstones, report).await?.or(kept);
            }
        }
        Ok(kept)
    }

    /// Deletes old records of removals in batches, so that the next collection continues after an interrupted
    /// one.
    async fn gc_records(
        &self,
        run: RunTimes,
        control: &JobControl,
        report: &mut GcReport,
    ) -> Result<(), Error> {
        let cutoff = run.now.saturating_sub(millis(self.config.gc_history));
        let (mut records, mut logged) = (0, Instant::now());
        let count = |rows| {
            records += rows;
            control.report_progress("deleting expired removal records", records, None);
            if logged.elapsed() >= PROGRESS_INTERVAL {
                logged = Instant::now();
                tracing::info!(records, "deleting expired removal records");
            }
        };
        let expired = self.store.removals_expire(cutoff, count).await;
        report.records += records;
        expired?;
        // A deleted time makes the next pull compare the tag with its upstream again.
        let longest = self.config.mirror.iter().map(|mirror| mirror.check_after).max().unwrap_or_default();
        self.store.mirror_checks_expire(longest.max(MIRROR_CHECK_AGE)).await.map(drop)
    }

    /// Deletes what the index knows of manifests that no repository has any more and whose models have too many
    /// tensors for the statement that removed them.
    async fn gc_models(&self, control: &JobControl) -> Result<(), Error> {
        let (mut after, mut deleted) = (String::new(), 0);
        loop {
            control.checkpoint("deleting index entries", deleted)?;
            let (unnamed, last) = self.store.models_unnamed(&after, BATCH).await?;
            let Some(last) = last else { return Ok(()) };
            after = last;
            deleted += retry_on_deadlock!(self.store.models_delete(&unnamed).await)?;
        }
    }

    /// Deletes empty repositories.
    async fn gc_repositories(&self, control: &JobControl) -> Result<(), Error> {
        let mut after = String::new();
        loop {
            control.checkpoint("removing empty repositories", 0)?;
            let repositories = self.store.repositories_with_emptiness(&after, BATCH).await?;
            let Some((last, _)) = repositories.last() else { return Ok(()) };
            after = last.as_str().to_owned();
            let empty: Vec<Repository> =
                repositories.into_iter().filter(|(_, is_empty)| *is_empty).map(|(name, _)| name).collect();
            if !empty.is_empty() {
                retry_on_deadlock!(self.gc_delete_repositories(&empty).await)?;
            }
        }
    }

    async fn gc_delete_repositories(&self, repositories: &[Repository]) -> Result<(), Error> {
        let mut tx = self.store.begin().await?;
        tx.repositories_collect(repositories).await?;
        tx.commit().await
    }

    /// Like `gc_delete_bytes`, one blob at a time. Returns the last error of the failed deletions. After several
    /// consecutive failures the storage is considered unavailable, and the error ends the collection.
    async fn gc_delete_bytes_singly(
        &self,
        tombstones: &[BlobLocation],
        report: &mut GcReport,
    ) -> Result<Option<Error>, Error> {
        let (mut kept, mut in_a_row) = (None, 0);
        for blob in tombstones {
            match self.gc_delete_bytes(std::slice::from_ref(blob), report).await {
                Ok(()) => in_a_row = 0,
                Err(error) if in_a_row == MAX_CONSECUTIVE_FAILURES => return Err(error),
                Err(error) => {
                    in_a_row += 1;
                    tracing::warn!(
                        key = blob.store_key,
                        error = chain(&error),
                        "failed to delete bytes of a blob; will retry"
                    );
                    kept = Some(error);
                }
            }
        }
        Ok(kept)
    }

    /// Removes those of these manifests that are still unreferenced. Returns how many.
    async fn gc_manifests(&self, run: RunTimes, candidates: &[UnreferencedContent]) -> Result<u64, Error> {
        if candidates.is_empty() {
            return Ok(0);
        }
        let mut tx = self.store.begin().await?;
        tx.repositories_lock(candidates.iter().map(|content| &content.repository)).await?;
        let free = tx.manifests_recheck(candidates, run.cutoff).await?;
        let why = run.removal_cause(RemovalReason::Unreferenced);
        let removed = self.manifests_remove(&mut tx, &free, &why).await?.len() as u64;
        tx.commit().await?;
        Ok(removed)
    }

    /// Removes those of these links that are still past their grace period and lease. Returns how many.
    async fn gc_links(&self, run: RunTimes, candidates: &[UnreferencedContent]) -> Result<u64, Error> {
        if candidates.is_empty() {
            return Ok(0);
        }
        let mut tx = self.store.begin().await?;
        // Lock the blobs' rows first, then the repositories, in the same order as a push.
        let free = tx.blobs_lock_free(candidates.iter().map(|content| &content.digest)).await?;
        let candidates: Vec<UnreferencedContent> =
            candidates.iter().filter(|content| free.contains(content.digest.as_str())).cloned().collect();
        tx.repositories_lock(candidates.iter().map(|content| &content.repository)).await?;
        let removed = tx.links_collect(&candidates, run.cutoff).await?;
        tx.commit().await?;
        Ok(removed)
    }

    async fn gc_tombstone_blobs(&self, blobs: &[BlobLocation], run: RunTimes) -> Result<(), Error> {
        if blobs.is_empty() {
            return Ok(());
        }
        let mut tx = self.store.begin().await?;
        // Deleted bytes cannot be restored: blobs that an undo needs are never candidates.
        let why = RemovalCause { undo_until: run.now, ..run.removal_cause(RemovalReason::Unreferenced) };
        tx.blobs_tombstone(blobs, run.cutoff, &why).await?;
        tx.commit().await
    }

    /// Deletes the bytes, then the tombstones, so that the next run can continue after an interruption at any
    /// point.
    async fn gc_delete_bytes(&self, tombstones: &[BlobLocation], report: &mut GcReport) -> Result<(), Error> {
        // In the folder a blob's key is derived from its digest, so a commit that cancels a deletion waits
        // for this lock, or held it first. A commit holds one of these locks and waits for no other, so this
        // cannot deadlock. In object storage new bytes have a new key.
        let mut turns = Vec::with_capacity(tombstones.len());
        for blob in tombstones {
            if turns.iter().all(|(digest, _)| *digest != blob.digest) {
                turns.push((blob.digest.clone(), self.digests.lock(blob.digest.clone()).await));
            }
        }
        let tombstones = self.store.tombstones_existing(tombstones).await?;

        let keys = tombstones.iter().map(|blob| blob.store_key.clone()).collect();
        let guards = turns.iter().map(|(_, lock)| lock.guard()).collect();
        self.blobs.remove(keys, guards).await?;

        retry_on_deadlock!(self.gc_delete_tombstones(&tombstones).await)?;
        for blob in &tombstones {
            report.blobs += 1;
            report.size_bytes += blob.size_bytes;
        }
        Ok(())
    }

    async fn gc_delete_tombstones(&self, tombstones: &[BlobLocation]) -> Result<(), Error> {
        let mut tx = self.store.begin().await?;
        tx.tombstones_delete(tombstones).await?;
        tx.commit().await
    }
}
