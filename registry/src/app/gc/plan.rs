//! The dry run of a collection. It only reads, so nothing waits for it. It follows the steps of a real
//! collection and keeps the content that would be removed in memory.

use std::collections::{BTreeMap, BTreeSet};

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};

use super::{BATCH, GcReport, Removal, RunTimes};
use crate::Error;
use crate::app::Registry;
use crate::retention::Rule;
use crate::store::{RemovalReason, TimeCursor, UnreferencedContent};
use crate::time::millis;

/// The most removals that a report lists.
const LISTED: usize = 10_000;

impl Registry {
    pub(super) async fn gc_plan(&self, run: RunTimes) -> Result<GcReport, Error> {
        let report = GcReport { dry_run: true, ..GcReport::default() };
        let mut plan = Plan {
            registry: self,
            run,
            report,
            tags: BTreeSet::new(),
            manifests: BTreeSet::new(),
            candidate_manifests: Vec::new(),
            released_content: BTreeMap::new(),
            links: BTreeSet::new(),
            released: BTreeMap::new(),
            kept: BTreeSet::new(),
        };
        plan.retention().await?;
        plan.manifests().await?;
        plan.links().await?;
        plan.blobs().await?;
        Ok(plan.report)
    }
}

type ManifestKey = (Repository, Digest);

fn key_and_time(content: UnreferencedContent) -> (ManifestKey, i64) {
    ((content.repository, content.digest), content.unreferenced_at)
}

struct Plan<'a> {
    registry: &'a Registry,
    run: RunTimes,
    report: GcReport,
    /// The content that would be removed.
    tags: BTreeSet<(Repository, Tag)>,
    manifests: BTreeSet<ManifestKey>,
    links: BTreeSet<ManifestKey>,
    /// Manifests to check, and since when they are unreferenced.
    candidate_manifests: Vec<(ManifestKey, i64)>,
    /// Content that the removed manifests would release, and since when.
    released_content: BTreeMap<ManifestKey, i64>,
    released: BTreeMap<Digest, i64>,
    /// Blobs that are kept to restore them.
    kept: BTreeSet<Digest>,
}

impl Plan<'_> {
    fn list(&mut self, removal: Removal) {
        if self.report.removals.len() < LISTED {
            self.report.removals.push(removal);
        }
    }

    async fn retention(&mut self) -> Result<(), Error> {
        let (registry, mut after) = (self.registry, String::new());
        while let Some(page) = registry.repositories_with_rules(&mut after).await? {
            for (repository, rule) in page {
                self.tags_beyond(&repository, rule).await?;
                let Some(limit) = rule.remove_untagged_after else { continue };
                let (cutoff, mut last) = (self.run.now.saturating_sub(millis(limit)), String::new());
                loop {
                    let untagged =
                        registry.store.manifests_untagged(&repository, cutoff, &last, BATCH).await?;
                    let Some(digest) = untagged.last() else { break };
                    last = digest.as_str().to_owned();
                    for digest in untagged {
                        let reason = RemovalReason::Untagged { rule: rule.number };
                        self.remove((repository.clone(), digest), self.run.now, reason).await?;
                    }
                }
            }
        }
        Ok(())
    }

    async fn tags_beyond(&mut self, repository: &Repository, rule: &Rule) -> Result<(), Error> {
        let beyond = self.registry.tags_to_remove(repository, rule).await?;
        let reason = RemovalReason::KeepLast { rule: rule.number };
        for tag in &beyond {
            self.report.tags += 1;
            self.tags.insert((repository.clone(), tag.name.clone()));
            let removal = Removal::planned_removal("tag", Some(repository), tag.digest.as_str(), reason);
            self.list(Removal { tag: Some(tag.name.to_string()), ..removal });
        }
        for tag in beyond {
            let here = (repository.clone(), tag.digest);
            if rule.remove_untagged_after.is_some_and(|limit| limit.is_zero()) {
                self.remove_if_unreferenced(
                    here,
                    self.run.now,
                    RemovalReason::Untagged { rule: rule.number },
                )
                .await?;
            } else if self.run.now <= self.run.cutoff {
                self.candidate_manifests.push((here, self.run.now));
            }
        }
        Ok(())
    }

    async fn manifests(&mut self) -> Result<(), Error> {
        let mut place = Some(TimeCursor::default());
        while let Some(after) = place.take() {
            let some = self.registry.store.manifests_unreferenced(self.run.cutoff, &after, BATCH).await?;
            place = some.next;
            self.candidate_manifests.extend(some.found.into_iter().map(key_and_time));
        }
        // A removed manifest releases others, which may release further ones.
        loop {
            let (before, loose) = (self.report.manifests, std::mem::take(&mut self.candidate_manifests));
            for (here, at) in loose {
                if !self.remove_if_unreferenced(here.clone(), at, RemovalReason::Unreferenced).await? {
                    self.candidate_manifests.push((here, at));
                }
            }
            if self.report.manifests == before {
                return Ok(());
            }
        }
    }

    /// Returns false if a reference or lease keeps it.
    async fn remove_if_unreferenced(
        &mut self,
        here: ManifestKey,
        at: i64,
        reason: RemovalReason,
    ) -> Result<bool, Error> {
        if self.manifests.contains(&here) {
            return Ok(true);
        }
        let holders = self.registry.store.manifest_holders(&here.0, &here.1).await?;
        let there = |digest: &Digest| !self.manifests.contains(&(here.0.clone(), digest.clone()));
        let held = !holders.exists
            || holders.leased
            || holders.tags.iter().any(|tag| !self.tags.contains(&(here.0.clone(), tag.clone())))
            || holders.indexes.iter().any(there)
            || holders.subject.as_ref().is_some_and(there);
        if !held {
            self.remove(here, at, reason).await?;
        }
        Ok(!held)
    }

    async fn remove(&mut self, here: ManifestKey, at: i64, reason: RemovalReason) -> Result<(), Error> {
        if !self.manifests.insert(here.clone()) {
            return Ok(());
        }
        self.report.manifests += 1;
        self.list(Removal::planned_removal("manifest", Some(&here.0), here.1.as_str(), reason));
        let (mut blobs, children) = self.registry.store.manifest_references(&here.0, &here.1).await?;
        blobs.push(here.1.clone());
        if self.run.undo_until > self.run.now {
            self.kept.extend(blobs.iter().cloned());
        }
        if at <= self.run.cutoff {
            self.candidate_manifests
                .extend(children.iter().map(|child| ((here.0.clone(), child.clone()), at)));
        }
        for digest in blobs.into_iter().chain(children) {
            let since = self.released_content.entry((here.0.clone(), digest)).or_insert(at);
            *since = at.max(*since);
        }
        Ok(())
    }

    async fn links(&mut self) -> Result<(), Error> {
        let mut let_go = std::mem::take(&mut self.released_content);
        let mut place = Some(TimeCursor::default());
        while let Some(after) = place.take() {
            let some = self.registry.store.links_unreferenced(self.run.cutoff, &after, BATCH).await?;
            place = some.next;
            let_go.extend(some.found.into_iter().map(key_and_time));
        }
        for (here, at) in let_go {
            if at > self.run.cutoff {
                continue;
            }
            let Some(holders) = self.registry.store.link_holders(&here.0, &here.1).await? else { continue };
            let is_removed = |digest: &Digest| self.manifests.contains(&(here.0.clone(), digest.clone()));
            if !holders.leased
                && holders.manifests.iter().all(is_removed)
                && (!holders.is_manifest || is_removed(&here.1))
            {
                self.report.links += 1;
                let since = self.released.entry(here.1.clone()).or_insert(at);
                *since = at.max(*since);
                self.links.insert(here);
            }
        }
        Ok(())
    }

    async fn blobs(&mut self) -> Result<(), Error> {
        let store = &self.registry.store;
        // 1. Tombstones left by an earlier run.
        let mut after = String::new();
        loop {
            let tombstones = store.tombstones(&after, BATCH).await?;
            let Some(last) = tombstones.last() else { break };
            after.clone_from(&last.store_key);
            self.report.blobs += tombstones.len() as u64;
            self.report.size_bytes += tombstones.iter().map(|blob| blob.size_bytes).sum::<u64>();
        }
        // 2. Blobs that no repository links.
        let mut place = Some(TimeCursor::default());
        while let Some(after) = place.take() {
            let blobs = store.blobs_unlinked(self.run.cutoff, &after, BATCH).await?;
            place = blobs.next;
            for blob in blobs.found {
                self.blob(&blob.digest, blob.size_bytes);
            }
        }
        // 3. Blobs that no repository would link.
        for (digest, at) in std::mem::take(&mut self.released) {
            let Some(holders) = store.blob_holders(&digest).await? else { continue };
            let linked = holders.repositories.into_iter().any(|r| !self.links.contains(&(r, digest.clone())));
            if !linked
                && !holders.kept_for_undo
                && !self.kept.contains(&digest)
                && holders.released_at.max(at) <= self.run.cutoff
            {
                self.blob(&digest, holders.size_bytes);
            }
        }
        Ok(())
    }

    fn blob(&mut self, digest: &Digest, size_bytes: u64) {
        self.report.blobs += 1;
        self.report.size_bytes += size_bytes;
        let removal = Removal::planned_removal("blob", None, digest.as_str(), RemovalReason::Unreferenced);
        self.list(Removal { size_bytes: Some(size_bytes), ..removal });
    }
}
