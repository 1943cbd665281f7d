//! Applies retention rules: removes tags beyond those that a rule keeps, and manifests that were untagged for
//! too long. These removals are recorded and can be undone like any other.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{BATCH, GcReport, Run};
use crate::Error;
use crate::app::jobs::JobControl;
use crate::app::{Registry, again};
use crate::retention::Rule;
use crate::store::{AgedTag, Reason, Unreferenced, Why, millis};
use crate::webhooks::Event;

impl Registry {
    pub(super) async fn gc_retention(
        &self,
        run: Run,
        control: &JobControl,
        report: &mut GcReport,
    ) -> Result<(), Error> {
        let mut after = String::new();
        while let Some(page) = self.repositories_ruled(&mut after).await? {
            for (repository, rule) in page {
                control.checkpoint("applying retention rules", report.tags)?;
                let tags = self.tags_beyond(&repository, rule).await?;
                let why = run.why(Reason::KeepLast { rule: rule.number });
                for batch in tags.chunks(BATCH as usize) {
                    report.tags += again!(self.tags_retire(&repository, batch, &why).await)?;
                }
                self.gc_untagged(run, &repository, rule, report).await?;
            }
        }
        Ok(())
    }

    /// The next repositories that have a rule. `None` after the last page.
    pub(super) async fn repositories_ruled(
        &self,
        after: &mut String,
    ) -> Result<Option<Vec<(Repository, &Rule)>>, Error> {
        if self.retention.is_empty() {
            return Ok(None);
        }
        let page = self.store.repository_list(after, BATCH).await?;
        let Some(last) = page.last() else { return Ok(None) };
        *after = last.as_str().to_owned();
        let ruled = page.into_iter().filter_map(|repository| {
            let rule = self.retention.of(&repository)?;
            Some((repository, rule))
        });
        Ok(Some(ruled.collect()))
    }

    /// The tags that a rule does not keep.
    pub(super) async fn tags_beyond(
        &self,
        repository: &Repository,
        rule: &Rule,
    ) -> Result<Vec<AgedTag>, Error> {
        let Some(keep_last) = rule.keep_last else { return Ok(Vec::new()) };
        let tags = self.store.tags_by_age(repository).await?.into_iter();
        Ok(tags.filter(|tag| !rule.keeps(&tag.name)).skip(keep_last as usize).collect())
    }

    async fn tags_retire(&self, repository: &Repository, tags: &[AgedTag], why: &Why) -> Result<u64, Error> {
        let mut gone = 0;
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        for tag in tags {
            if tx.tag_retire(repository, tag, why).await? {
                let AgedTag { name, digest, .. } = tag;
                let event = Event::Untag { repository, tag: name, digest, reason: why.reason.word() };
                self.announce(&mut tx, event).await?;
                gone += 1;
            }
        }
        tx.commit().await?;
        Ok(gone)
    }

    async fn gc_untagged(
        &self,
        run: Run,
        repository: &Repository,
        rule: &Rule,
        report: &mut GcReport,
    ) -> Result<(), Error> {
        let Some(after) = rule.remove_untagged_after else { return Ok(()) };
        let cutoff = run.now.saturating_sub(millis(after));
        let why = run.why(Reason::Untagged { rule: rule.number });
        let mut last = String::new();
        loop {
            let untagged = self.store.manifests_untagged(repository, cutoff, &last, BATCH).await?;
            let Some(digest) = untagged.last() else { return Ok(()) };
            last = digest.as_str().to_owned();
            report.manifests += again!(self.untagged_retire(repository, &untagged, cutoff, &why).await)?;
        }
    }

    async fn untagged_retire(
        &self,
        repository: &Repository,
        untagged: &[Digest],
        cutoff: i64,
        why: &Why,
    ) -> Result<u64, Error> {
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        let still = tx.manifests_still_untagged(repository, untagged, cutoff).await?;
        let still: Vec<Unreferenced> =
            still.into_iter().map(|digest| (repository.clone(), digest, why.at)).collect();
        let gone = self.manifests_take_away(&mut tx, &still, why).await?;
        tx.commit().await?;
        Ok(gone)
    }
}
