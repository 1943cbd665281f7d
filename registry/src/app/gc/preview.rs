//! What the retention rule of a repository keeps, and what a collection would remove now.

use lode_model::reference::{Repository, Tag};

use super::BATCH;
use crate::app::Registry;
use crate::auth::{AccessTarget, Action, Caller, Target};
use crate::time::{millis, now_ms};
use crate::{Error, RetentionRule};

/// The most tags that a preview names.
const MAX_TAGS: usize = 100;

/// A retention rule as it applies to a repository now.
pub(crate) struct RetentionPreview {
    /// Of the rule in the settings, counted from 1.
    pub(crate) number: u32,
    pub(crate) rule: RetentionRule,
    /// The tags that would be removed, the most recently moved first: the first `MAX_TAGS` with the time of their
    /// last move.
    pub(crate) tags: Vec<(Tag, i64)>,
    pub(crate) tag_count: u64,
    /// The manifests that would be removed because they are untagged, at most `BATCH`.
    pub(crate) untagged_count: u64,
    pub(crate) has_more_untagged: bool,
}

impl Registry {
    /// The retention rule of a repository and what it would remove now, for those who maintain the repository.
    /// `None` without a rule.
    pub(crate) async fn retention_preview(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Option<RetentionPreview>, Error> {
        let target = AccessTarget::Repository(repository.clone());
        self.authorize(caller, Action::Maintain, Target::Settings(&target)).await?;
        let Some(rule) = self.retention.of(repository) else { return Ok(None) };
        let tags = self.tags_to_remove(repository, rule).await?;
        let untagged = match rule.remove_untagged_after {
            Some(after) => {
                let cutoff = now_ms().saturating_sub(millis(after));
                self.store.manifests_untagged(repository, cutoff, "", BATCH + 1).await?.len() as u64
            }
            None => 0,
        };
        let limit = BATCH.unsigned_abs();
        Ok(Some(RetentionPreview {
            number: rule.number,
            rule: self.config.retention[rule.number as usize - 1].clone(),
            tag_count: tags.len() as u64,
            tags: tags.into_iter().take(MAX_TAGS).map(|tag| (tag.name, tag.updated_at)).collect(),
            untagged_count: untagged.min(limit),
            has_more_untagged: untagged > limit,
        }))
    }
}
