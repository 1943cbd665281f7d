//! The patterns of protected tags: reading and changing them.

use std::sync::Arc;

use lode_model::reference::Repository;

use super::accounts::AccountError;
use super::{Page, Registry};
use crate::Error;
use crate::auth::{AccessTarget, Action, Caller, ProtectedTags, Target, tag_pattern};

/// How many patterns a target may have.
pub(super) const MAX_PATTERNS: usize = 32;
const MAX_PATTERN_LEN: usize = 128;

/// The patterns that protect the tags of a repository.
pub(crate) struct RepositoryTagRules {
    pub(crate) own: Vec<String>,
    /// Those of its namespace.
    pub(crate) inherited: Vec<String>,
}

impl Registry {
    /// The patterns of a repository and its namespace.
    pub(super) async fn protected_tags(&self, repository: &Repository) -> Result<Arc<ProtectedTags>, Error> {
        let state = self.access_state().await?;
        if !state.has_tag_rules {
            return Ok(Arc::default());
        }
        let key = (state.version, repository.clone());
        if let Some(known) = self.access.protected_tags.get(&key) {
            return Ok(known);
        }
        let (own, namespace) =
            (AccessTarget::Repository(repository.clone()), AccessTarget::namespace_of(repository));
        let patterns = self.store().tag_rules_find(&[&own, &namespace]).await?;
        let rules = Arc::new(ProtectedTags::new(&patterns));
        self.access.protected_tags.insert(key, rules.clone());
        Ok(rules)
    }

    /// Which tags of a repository are protected, for those who may read it.
    pub(crate) async fn tag_protection(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Arc<ProtectedTags>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        self.protected_tags(repository).await
    }

    /// The patterns of a target.
    pub async fn tag_rules(&self, caller: &Caller, target: &AccessTarget) -> Result<Vec<String>, Error> {
        self.authorize(caller, Action::Maintain, Target::Settings(target)).await?;
        self.store().tag_rules_find(&[target]).await
    }

    /// The patterns that apply to a repository, for those who maintain it.
    pub(crate) async fn repository_tag_rules(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<RepositoryTagRules, Error> {
        let target = AccessTarget::Repository(repository.clone());
        let own = self.tag_rules(caller, &target).await?;
        let inherited = self.store().tag_rules_find(&[&AccessTarget::namespace_of(repository)]).await?;
        Ok(RepositoryTagRules { own, inherited })
    }

    /// The patterns that apply to a target, or all patterns, with their targets: at most `n` after a target and a pattern, in their
    /// order.
    pub(crate) async fn tag_rules_page(
        &self,
        caller: &Caller,
        target: Option<&AccessTarget>,
        after: (&str, &str),
        n: u32,
    ) -> Result<Page<(AccessTarget, String)>, Error> {
        match target {
            Some(target) => self.authorize(caller, Action::Maintain, Target::Settings(target)).await?,
            None => self.authorize(caller, Action::Inspect, Target::Server).await?,
        }
        Ok(Page::cut(self.store().tag_rules_list(target, after, i64::from(n) + 1).await?, n))
    }

    /// Replaces the patterns of a target: `v*` protects every tag that begins with `v`. With `expected`, only if
    /// these are its patterns now.
    pub async fn tag_rules_put(
        &self,
        caller: &Caller,
        target: &AccessTarget,
        patterns: &[String],
        expected: Option<&[String]>,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        self.authorize(caller, Action::Maintain, Target::Settings(target)).await?;
        self.check_writable()?;
        if patterns.len() > MAX_PATTERNS {
            return Err(AccountError::TooManyPatterns { limit: MAX_PATTERNS });
        }
        for text in patterns {
            // Tags have no other characters. The page has a pattern on each line.
            let is_written = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_written || text.len() > MAX_PATTERN_LEN || tag_pattern(text).is_err() {
                return Err(AccountError::Pattern { text: text.clone() });
            }
        }
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        // The version's row is locked now, so that no other change comes in between.
        if let Some(expected) = expected
            && tx.tag_rules_of(target).await? != expected
        {
            return Err(AccountError::PatternsChanged { target: target.clone() });
        }
        tx.tag_rules_put(target, patterns).await?;
        let detail = serde_json::json!({ "patterns": patterns });
        self.audit(&mut tx, caller, "tags.protect", target.to_string(), detail).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(())
    }
}
