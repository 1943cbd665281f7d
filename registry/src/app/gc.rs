//! The collection: what nothing references any more goes after its grace, while pushes and reads go on.
//! It follows what lost a reference and never scans what did not; a push that races with it wins.

use serde::Serialize;

use super::{Registry, again, detached};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::store::{self, Doomed, Place, Tx, now_ms};

/// How many rows one transaction looks at: few enough that pushes do not wait for it.
const BATCH: i64 = 100;

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
    /// Runs one collection, after the one that may be running.
    pub async fn gc_run(&self, caller: &Caller, dry_run: bool) -> Result<GcReport, Error> {
        allow(caller, Action::Administer, Target::Server)?;
        let this = self.clone();
        detached(async move {
            let _turn = this.collecting.lock().await;
            let cutoff = now_ms().saturating_sub(store::millis(this.config.gc_grace));
            let report = if dry_run { this.gc_dry(cutoff).await? } else { this.gc_all(cutoff).await? };
            tracing::info!(
                dry_run,
                manifests = report.manifests,
                links = report.links,
                blobs = report.blobs,
                size_bytes = report.size_bytes,
                "collection done"
            );
            Ok(report)
        })
        .await
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
        // 3. Blobs that no repository links.
        let mut after = String::new();
        loop {
            let blobs = self.store.blobs_unlinked(cutoff, &after, BATCH).await?;
            let Some(last) = blobs.last() else { return Ok(report) };
            after = last.digest.as_str().to_owned();
            self.collect_blobs(blobs, cutoff, &mut report).await?;
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

    /// Row to tombstone, bytes away, tombstone away: at each point a crash leaves something that the next run finishes.
    async fn collect_blobs(
        &self,
        blobs: Vec<Doomed>,
        cutoff: i64,
        report: &mut GcReport,
    ) -> Result<(), Error> {
        // Commits of these digests wait. They hold one lock and wait for no other, so that this cannot deadlock.
        let mut turns = Vec::with_capacity(blobs.len());
        for blob in &blobs {
            turns.push(self.digests.lock(blob.digest.clone()).await);
        }
        let condemned = again!(self.condemn(&blobs, cutoff).await)?;

        self.blobs.remove(condemned.iter().map(|blob| blob.store_key.clone()).collect()).await?;

        let mut tx = self.store.begin().await?;
        for blob in &condemned {
            tx.blob_bury(&blob.digest).await?;
            report.blobs += 1;
            report.size_bytes += blob.size_bytes;
        }
        tx.commit().await
    }

    async fn condemn(&self, blobs: &[Doomed], cutoff: i64) -> Result<Vec<Doomed>, Error> {
        let mut condemned = Vec::new();
        let mut tx = self.store.begin().await?;
        for blob in blobs {
            if tx.blob_condemn(blob, cutoff, "unreferenced").await? {
                condemned.push(blob.clone());
            }
        }
        tx.commit().await?;
        Ok(condemned)
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
    for (repository, digest, at) in candidates {
        // The blob's row first, then its link: the order in which a push takes them.
        tx.blob_lock(&digest).await?;
        if tx.link_collect(&repository, &digest, cutoff).await? {
            // The repository let go of it when its last manifest did, so that the grace is not waited for twice.
            tx.blob_unlinked(&digest, at).await?;
            report.links += 1;
        }
    }
    Ok(place)
}

fn place(repository: &str, digest: &str) -> Place {
    (repository.to_owned(), digest.to_owned())
}
