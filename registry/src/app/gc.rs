//! The collection: what nothing references any more goes after its grace, while pushes and reads go on.
//! It follows what lost a reference and never scans what did not; a push that races with it wins.

use std::time::Instant;

use serde::Serialize;
use tokio::sync::MutexGuard;

use super::{Registry, again, detached};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::metrics;
use crate::store::{self, Doomed, Place, Turn, Tx, now_ms};

/// How many rows one transaction looks at: few enough that pushes do not wait for it.
const BATCH: i64 = 100;

/// The name of the turn that replicas take.
const TURN: &str = "collection";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcReport {
    /// Nothing was changed; the rest is what would have been.
    pub dry_run: bool,
    pub manifests: u64,
    /// Blobs taken out of a repository.
    pub links: u64,
    /// Blobs whose bytes went.
    pub blobs: u64,
    pub size_bytes: u64,
}

impl Registry {
    /// Runs one collection, after the one that may be running, here or on another replica.
    pub async fn gc_run(&self, caller: &Caller, dry_run: bool) -> Result<GcReport, Error> {
        allow(caller, Action::Administer, Target::Server)?;
        let this = self.clone();
        detached(async move {
            let _turn = this.gc_turn().await?;
            this.gc_now(dry_run).await
        })
        .await
    }

    /// Runs one collection, unless one is running.
    pub(crate) async fn gc_scheduled(&self) -> Result<(), Error> {
        let this = self.clone();
        detached(async move {
            let Ok(_here) = this.collecting.try_lock() else { return Ok(()) };
            match this.store.turn_try(TURN).await? {
                Some(_turn) => this.gc_now(false).await.map(drop),
                None => Ok(tracing::debug!("another replica is collecting")),
            }
        })
        .await
    }

    /// The turn of the one collection among all replicas. Two at once would do no harm, but count and wait for each other.
    pub(super) async fn gc_turn(&self) -> Result<(MutexGuard<'_, ()>, Turn), Error> {
        let here = self.collecting.lock().await;
        Ok((here, self.store.turn(TURN).await?))
    }

    async fn gc_now(&self, dry_run: bool) -> Result<GcReport, Error> {
        let cutoff = now_ms().saturating_sub(store::millis(self.config.gc_grace));
        let started = Instant::now();
        let outcome = if dry_run { self.gc_dry(cutoff).await } else { self.gc_all(cutoff).await };
        if !dry_run {
            metrics::collection(&outcome, started.elapsed());
        }
        let report = outcome?;
        tracing::info!(
            dry_run,
            manifests = report.manifests,
            links = report.links,
            blobs = report.blobs,
            size_bytes = report.size_bytes,
            "collection done"
        );
        Ok(report)
    }

    /// The whole collection in one transaction that is taken back.
    async fn gc_dry(&self, cutoff: i64) -> Result<GcReport, Error> {
        let mut report = GcReport { dry_run: true, ..GcReport::default() };
        let mut tx = self.store.begin().await?;
        let mut place = Place::default();
        let mut before = 0;
        loop {
            match collect_manifests(&mut tx, cutoff, &place, &mut report).await? {
                Some(next) => place = next,
                None if report.manifests == before => break,
                None => (before, place) = (report.manifests, Place::default()),
            }
        }
        let mut place = Place::default();
        while let Some(next) = collect_links(&mut tx, cutoff, &place, &mut report).await? {
            place = next;
        }
        (report.blobs, report.size_bytes) = tx.blobs_unlinked_total(cutoff).await?;
        tx.rollback().await?;
        Ok(report)
    }

    async fn gc_all(&self, cutoff: i64) -> Result<GcReport, Error> {
        let mut report = GcReport::default();
        // 1. Manifests whose tag or index went, and that nothing else wants. An index lets go of its children, so this is
        //    repeated for as long as it finds something.
        let (mut place, mut before) = (Place::default(), 0);
        loop {
            match again!(self.gc_manifests(cutoff, &place, &mut report).await)? {
                Some(next) => place = next,
                None if report.manifests == before => break,
                None => (before, place) = (report.manifests, Place::default()),
            }
        }
        // 2. Links that no manifest of their repository names, and repositories that hold nothing.
        let mut place = Some(Place::default());
        while let Some(after) = place {
            place = again!(self.gc_links(cutoff, &after, &mut report).await)?;
        }
        for repository in &self.store.repositories_empty().await? {
            let mut tx = self.store.begin().await?;
            tx.repository_collect(repository).await?;
            tx.commit().await?;
        }
        // 3. Blobs that no repository links become tombstones.
        let mut after = String::new();
        loop {
            let blobs = self.store.blobs_unlinked(cutoff, &after, BATCH).await?;
            let Some(last) = blobs.last() else { break };
            after = last.digest.as_str().to_owned();
            again!(self.gc_condemn(&blobs, cutoff).await)?;
        }
        // 4. The bytes of tombstones go, also of those that a crash left, and then the tombstones.
        let mut after = String::new();
        loop {
            let doomed = self.store.tombstones(&after, BATCH).await?;
            let Some(last) = doomed.last() else { return Ok(report) };
            after.clone_from(&last.store_key);
            self.gc_bury(&doomed, &mut report).await?;
        }
    }

    async fn gc_manifests(
        &self,
        cutoff: i64,
        after: &Place,
        report: &mut GcReport,
    ) -> Result<Option<Place>, Error> {
        let mut batch = report.clone();
        let mut tx = self.store.begin().await?;
        let next = collect_manifests(&mut tx, cutoff, after, &mut batch).await?;
        tx.commit().await?;
        *report = batch;
        Ok(next)
    }

    async fn gc_links(
        &self,
        cutoff: i64,
        after: &Place,
        report: &mut GcReport,
    ) -> Result<Option<Place>, Error> {
        let mut batch = report.clone();
        let mut tx = self.store.begin().await?;
        let next = collect_links(&mut tx, cutoff, after, &mut batch).await?;
        tx.commit().await?;
        *report = batch;
        Ok(next)
    }

    async fn gc_condemn(&self, blobs: &[Doomed], cutoff: i64) -> Result<(), Error> {
        let mut tx = self.store.begin().await?;
        tx.blobs_condemn(blobs, cutoff).await?;
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

        self.blobs.remove(doomed.iter().map(|blob| blob.store_key.clone()).collect()).await?;

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

/// Removes the next manifests past their grace; returns where to go on, if there may be more.
async fn collect_manifests(
    tx: &mut Tx,
    cutoff: i64,
    after: &Place,
    report: &mut GcReport,
) -> Result<Option<Place>, Error> {
    let candidates = tx.manifests_unreferenced(cutoff, after, BATCH).await?;
    let place = candidates.last().map(|(repository, digest, _)| place(repository.as_str(), digest.as_str()));
    for (repository, digest, at) in candidates {
        tx.repository_lock(&repository).await?;
        if !tx.manifest_lock(&repository, &digest, cutoff).await? {
            continue;
        }
        if tx.manifest_is_wanted(&repository, &digest).await? {
            tx.manifest_keep(&repository, &digest).await?;
        } else if !tx.link_is_leased(&repository, &digest).await?
            && tx.manifest_delete(&repository, &digest, at).await?
        {
            report.manifests += 1;
        }
    }
    Ok(place)
}

/// Removes the next links past their grace and lease; returns where to go on, if there may be more.
async fn collect_links(
    tx: &mut Tx,
    cutoff: i64,
    after: &Place,
    report: &mut GcReport,
) -> Result<Option<Place>, Error> {
    let candidates = tx.links_unreferenced(cutoff, after, BATCH).await?;
    let place = candidates.last().map(|(repository, digest, _)| place(repository.as_str(), digest.as_str()));
    // The blobs' rows first, then the repository: the order in which a push takes them.
    let free = tx.blobs_take(candidates.iter().map(|(_, digest, _)| digest)).await?;
    for (repository, digest, at) in candidates.iter().filter(|(_, digest, _)| free.contains(digest.as_str()))
    {
        tx.repository_lock(repository).await?;
        if tx.link_collect(repository, digest, cutoff).await? {
            // The repository let go of it when its last manifest did, so that the grace is not waited for twice.
            tx.blob_unlinked(digest, *at).await?;
            report.links += 1;
        }
    }
    Ok(place)
}

fn place(repository: &str, digest: &str) -> Place {
    (repository.to_owned(), digest.to_owned())
}
