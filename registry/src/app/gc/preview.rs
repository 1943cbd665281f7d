//! What the retention rule of a repository keeps, and what a collection would remove now.

use lode_model::reference::{Repository, Tag};

use crate::app::Registry;
use crate::auth::{AccessTarget, Action, Caller, Target};
use crate::retention::Rule;
use crate::time::{millis, now_ms};
use crate::{Error, RetentionRule};

/// The most tags that a preview names.
const MAX_TAGS: usize = 100;
/// The most tags, and the most manifests, of a repository with a preview: it reads all of them.
const MAX_ROWS: i64 = 10_000;

/// A retention rule as it applies to a repository now.
pub(crate) struct RetentionPreview {
    /// Of the rule in the settings, counted from 1.
    pub(crate) number: u32,
    pub(crate) rule: RetentionRule,
    /// `None` for a repository that is too large.
    pub(crate) removals: Option<RetentionRemovals>,
}

/// What a retention rule would remove now.
pub(crate) struct RetentionRemovals {
    /// The first `MAX_TAGS` with the time of their last move, the most recently moved first.
    pub(crate) tags: Vec<(Tag, i64)>,
    pub(crate) tag_count: u64,
    /// Manifests that have been untagged for too long.
    pub(crate) untagged_count: u64,
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
        self.check_repository_exists(repository, true).await?;
        let Some(rule) = self.retention.of(repository) else { return Ok(None) };
        let removals = match self.store.repository_exceeds(repository, MAX_ROWS).await? {
            true => None,
            false => Some(self.retention_removals(repository, rule).await?),
        };
        let number = rule.number;
        let rule = self.config.retention[number as usize - 1].clone();
        Ok(Some(RetentionPreview { number, rule, removals }))
    }

    async fn retention_removals(
        &self,
        repository: &Repository,
        rule: &Rule,
    ) -> Result<RetentionRemovals, Error> {
        let tags = self.tags_to_remove(repository, rule).await?;
        let untagged = match rule.remove_untagged_after {
            Some(after) => {
                let cutoff = now_ms().saturating_sub(millis(after));
                self.store.manifests_untagged(repository, cutoff, "", MAX_ROWS).await?
            }
            None => Vec::new(),
        };
        Ok(RetentionRemovals {
            tag_count: tags.len() as u64,
            tags: tags.into_iter().take(MAX_TAGS).map(|tag| (tag.name, tag.updated_at)).collect(),
            untagged_count: untagged.len() as u64,
        })
    }
}
