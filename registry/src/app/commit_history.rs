//! The commits of a revision: the manifests to which its tag was moved, from the history of tags. A branch can be squashed:
//! then it has one.

use std::collections::BTreeSet;

use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository, Tag};
use serde_json::Value;

use super::commit_error::CommitError;
use super::{Registry, Revision, commit_id, retry_on_deadlock};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{MAX_MOVES, TagMoveFilter, TagMoveRow, UnreferencedContent};

/// The longest message that is stored. The history of a repository has up to [`MAX_MOVES`].
const MAX_MESSAGE_CHARS: usize = 1000;

/// A manifest to which a tag was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedCommit {
    pub(crate) digest: Digest,
    /// In milliseconds since 1970.
    pub(crate) at: i64,
    /// The account that moved the tag; only for callers with an account.
    pub(crate) author: Option<String>,
    message: Option<String>,
}

impl RecordedCommit {
    pub(crate) fn id(&self) -> &str {
        commit_id(&self.digest)
    }

    /// `None` for a tag that was moved by another way than a commit.
    pub(crate) fn title(&self) -> Option<&str> {
        self.message.as_deref().and_then(|message| message.lines().next())
    }

    pub(crate) fn description(&self) -> &str {
        let message = self.message.as_deref().unwrap_or_default();
        message.split_once('\n').map_or("", |(_, rest)| rest.trim_start())
    }

    fn new(row: TagMoveRow, shows_author: bool) -> Option<RecordedCommit> {
        // An actor without a kind is no account.
        let author = row.actor.split_once(':').map(|(_, name)| name.to_owned());
        let author = author.filter(|_| shows_author);
        Some(RecordedCommit { digest: row.to?, at: row.moved_at, author, message: row.message })
    }
}

impl Registry {
    /// The commits of a revision, newest first. Those of a tag are the manifests to which it was moved, as far as its
    /// history goes back and they are stored; a digest has itself.
    pub(crate) async fn commits(
        &self,
        caller: &Caller,
        revision: &Revision,
    ) -> Result<Vec<RecordedCommit>, Error> {
        let tag = match &revision.reference {
            Reference::Tag(tag) => Some(tag),
            Reference::Digest(_) => None,
        };
        let filter = TagMoveFilter { tag, ..TagMoveFilter::default() };
        let moves = self.store.tag_moves(&revision.repository, filter, MAX_MOVES).await?;
        let shows_author = caller.account().is_some();
        let mut commits = moves.into_iter().filter_map(|row| RecordedCommit::new(row, shows_author));
        let mut commits: Vec<RecordedCommit> = match tag {
            Some(_) => self.stored_commits(revision, commits.collect()).await?,
            // The oldest move is that of the commit.
            None => commits.rfind(|commit| commit.digest == revision.digest).into_iter().collect(),
        };
        // The history may have begun later, or have been cut.
        if commits.iter().all(|commit| commit.digest != revision.digest) {
            let (at, _) = self.store.manifest_change(&revision.repository, &revision.reference).await?;
            let digest = revision.digest.clone();
            commits.insert(0, RecordedCommit { digest, at, author: None, message: None });
        }
        Ok(commits)
    }

    /// Without the commits whose manifests were deleted.
    async fn stored_commits(
        &self,
        revision: &Revision,
        mut commits: Vec<RecordedCommit>,
    ) -> Result<Vec<RecordedCommit>, Error> {
        let digests: BTreeSet<Digest> = commits.iter().map(|commit| commit.digest.clone()).collect();
        let digests: Vec<Digest> = digests.into_iter().collect();
        let missing = self.store.manifests_missing(&revision.repository, &digests).await?;
        let missing: BTreeSet<Digest> = missing.into_iter().collect();
        commits.retain(|commit| !missing.contains(&commit.digest));
        Ok(commits)
    }

    /// Replaces the commits of a branch by one with its files, and removes the manifests of the others that nothing else
    /// references. They can be restored for as long as those of any deletion.
    pub(crate) async fn branch_squash(
        &self,
        caller: &Caller,
        repository: &Repository,
        branch: &str,
        message: Option<&str>,
    ) -> Result<(), CommitError> {
        self.authorize(caller, Action::Delete, Target::Repository(repository)).await?;
        let tag = self.branch_find(caller, repository, branch).await?.tag;
        if !retry_on_deadlock!(self.squash_once(caller, repository, &tag, message).await)? {
            return Err(CommitError::BranchUnknown { branch: branch.to_owned(), tags: Vec::new() });
        }
        tracing::info!(%repository, %tag, "history of tag squashed");
        Ok(())
    }

    /// Returns false if there is no such tag.
    async fn squash_once(
        &self,
        caller: &Caller,
        repository: &Repository,
        tag: &Tag,
        message: Option<&str>,
    ) -> Result<bool, Error> {
        self.protected_tags(repository).await?.check(tag)?;
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        let why = self.deletion_cause(caller);
        let squashed = tx.tag_moves_squash(repository, tag, message, &why).await?;
        let Some(superseded) = squashed else { return Ok(false) };
        let content = |digest| {
            let (repository, unreferenced_at) = (repository.clone(), why.at);
            UnreferencedContent { repository, digest, unreferenced_at }
        };
        let manifests: Vec<UnreferencedContent> = superseded.into_iter().map(content).collect();
        for manifest in self.manifests_remove(&mut tx, &manifests, &why).await? {
            let target = format!("{repository}@{}", manifest.digest);
            self.audit(&mut tx, caller, "manifest.delete", target, Value::Null).await?;
        }
        self.audit(&mut tx, caller, "tag.squash", format!("{repository}:{tag}"), Value::Null).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// The message of a commit as it is stored: the title, and the description after an empty line. Without control
/// characters, and cut if it is long. `None` if nothing is left.
pub(crate) fn commit_message(title: &str, description: &str) -> Option<String> {
    let title: String = title.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let text = format!("{}\n\n{}", title.trim(), description.replace("\r\n", "\n").trim());
    let is_text = |char: &char| *char == '\n' || !char.is_control();
    let text: String = text.trim().chars().filter(is_text).collect();
    let message = match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    };
    Some(message).filter(|message| !message.is_empty())
}
