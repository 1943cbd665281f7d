//! Applies retention rules: removes tags beyond those that a rule keeps, and manifests that were untagged for
//! too long. These removals are recorded and can be undone like any other.

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde_json::{Value, json};

use super::{BATCH, GcReport, RunTimes};
use crate::Error;
use crate::app::event::Event;
use crate::app::job_control::JobControl;
use crate::app::{Registry, retry_on_deadlock};
use crate::auth::Caller;
use crate::retention::Rule;
use crate::store::{AgedTag, ListFilter, RemovalCause, RemovalReason, RemovedManifest, UnreferencedContent};
use crate::time::millis;

impl Registry {
    pub(super) async fn gc_retention(
        &self,
        run: RunTimes,
        control: &JobControl,
        report: &mut GcReport,
    ) -> Result<(), Error> {
        let mut after = String::new();
        while let Some(page) = self.repositories_with_rules(&mut after).await? {
            for (repository, rule) in page {
                control.checkpoint("applying retention rules", report.tags)?;
                let tags = self.tags_to_remove(&repository, rule).await?;
                let why = run.removal_cause(RemovalReason::KeepLast { rule: rule.number });
                for batch in tags.chunks(BATCH as usize) {
                    report.tags += retry_on_deadlock!(self.tags_remove(&repository, batch, &why).await)?;
                }
                self.gc_untagged(run, &repository, rule, report).await?;
            }
        }
        Ok(())
    }

    /// The next repositories that have a rule. `None` after the last page.
    pub(super) async fn repositories_with_rules(
        &self,
        after: &mut String,
    ) -> Result<Option<Vec<(Repository, &Rule)>>, Error> {
        if self.retention.is_empty() {
            return Ok(None);
        }
        let page = self.store.repository_list(&ListFilter::All, after, BATCH).await?;
        let Some(last) = page.last() else { return Ok(None) };
        *after = last.as_str().to_owned();
        let ruled = page.into_iter().filter_map(|repository| {
            let rule = self.retention.of(&repository)?;
            Some((repository, rule))
        });
        Ok(Some(ruled.collect()))
    }

    /// The tags that a rule does not keep. Protected tags stay.
    pub(super) async fn tags_to_remove(
        &self,
        repository: &Repository,
        rule: &Rule,
    ) -> Result<Vec<AgedTag>, Error> {
        let Some(keep_last) = rule.keep_last else { return Ok(Vec::new()) };
        let protected = self.protected_tags(repository).await?;
        let tags = self.store.tags_by_age(repository).await?.into_iter();
        let is_kept = |tag: &AgedTag| rule.is_kept_tag(&tag.name) || protected.has(tag.name.as_str());
        Ok(tags.filter(|tag| !is_kept(tag)).skip(keep_last as usize).collect())
    }

    async fn tags_remove(
        &self,
        repository: &Repository,
        tags: &[AgedTag],
        why: &RemovalCause,
    ) -> Result<u64, Error> {
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        let removed = tx.tags_delete_unchanged(repository, tags, why).await?;
        let reason = why.reason.as_str();
        let events: Vec<Event<'_>> = removed
            .iter()
            .map(|tag| Event::Untag { repository, tag: &tag.name, digest: &tag.digest, reason })
            .collect();
        self.announce_all(&mut tx, &why.actor, &events).await?;
        for tag in &removed {
            let target = format!("{repository}:{}", tag.name);
            self.audit(&mut tx, &Caller::INTERNAL, "tag.delete", target, detail(why)).await?;
        }
        tx.commit().await?;
        Ok(removed.len() as u64)
    }

    async fn gc_untagged(
        &self,
        run: RunTimes,
        repository: &Repository,
        rule: &Rule,
        report: &mut GcReport,
    ) -> Result<(), Error> {
        let Some(after) = rule.remove_untagged_after else { return Ok(()) };
        let cutoff = run.now.saturating_sub(millis(after));
        let why = run.removal_cause(RemovalReason::Untagged { rule: rule.number });
        let mut last = String::new();
        loop {
            let untagged = self.store.manifests_untagged(repository, cutoff, &last, BATCH).await?;
            let Some(digest) = untagged.last() else { return Ok(()) };
            last = digest.as_str().to_owned();
            report.manifests +=
                retry_on_deadlock!(self.untagged_remove(repository, &untagged, cutoff, &why).await)?;
        }
    }

    async fn untagged_remove(
        &self,
        repository: &Repository,
        untagged: &[Digest],
        cutoff: i64,
        why: &RemovalCause,
    ) -> Result<u64, Error> {
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        let still = tx.manifests_recheck_untagged(repository, untagged, cutoff).await?;
        let still: Vec<UnreferencedContent> = still
            .into_iter()
            .map(|digest| UnreferencedContent {
                repository: repository.clone(),
                digest,
                unreferenced_at: why.at,
            })
            .collect();
        let removed = self.manifests_remove(&mut tx, &still, why).await?;
        for RemovedManifest { repository, digest, .. } in &removed {
            let target = format!("{repository}@{digest}");
            self.audit(&mut tx, &Caller::INTERNAL, "manifest.delete", target, detail(why)).await?;
        }
        tx.commit().await?;
        Ok(removed.len() as u64)
    }
}

/// The detail of a removal in the audit log.
fn detail(why: &RemovalCause) -> Value {
    json!({ "reason": why.reason.as_str(), "rule": why.reason.rule() })
}
