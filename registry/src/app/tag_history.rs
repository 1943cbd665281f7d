//! The history of tags: who moved or deleted which tag, and the way back.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::event::Event;
use super::{Page, Registry, retry_on_deadlock};
use crate::Error;
use crate::auth::{Action, Caller, ProtectedTags, Target};
use crate::store::{TagMoveFilter, TagMoveRow};
use crate::time::as_rfc3339;

/// The longest page, and the default.
const PAGE: u32 = 100;

/// A recorded move of a tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TagMove {
    /// Counts the moves of the repository.
    pub(crate) position: i64,
    pub(crate) tag: Tag,
    // In milliseconds since 1970; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub(crate) moved_at: i64,
    /// Who moved it; only for callers with an account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) actor: Option<String>,
    /// The manifest before; absent if the tag did not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<Digest>,
    /// The manifest since then; absent if the tag was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<Digest>,
    /// Whether the repository still has the manifest `from`.
    pub(crate) can_move_back: bool,
    /// What the client said of the commit that moved it: a title, and a description after an empty line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
}

impl TagMove {
    /// The title of the commit's message.
    pub(crate) fn title(&self) -> Option<&str> {
        self.message.as_deref().and_then(|message| message.lines().next())
    }
}

/// A tag that was moved back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TagMovedBack {
    pub(crate) tag: Tag,
    pub(crate) digest: Digest,
    /// Where the tag was; absent if it did not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) previous: Option<Digest>,
}

impl Registry {
    /// Moves and deletions of the tags of a repository, or of one of them, newest first: at most `n`, before the position
    /// `before`.
    pub(crate) async fn tag_history(
        &self,
        caller: &Caller,
        repository: &Repository,
        tag: Option<&Tag>,
        n: Option<u32>,
        before: Option<i64>,
    ) -> Result<Page<TagMove>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let limit = n.map_or(PAGE, |n| n.clamp(1, PAGE));
        let filter = TagMoveFilter { tag, before, position: None };
        let rows = self.store.tag_moves(repository, filter, i64::from(limit) + 1).await?;
        self.check_repository_exists(repository, rows.is_empty()).await?;
        let is_known = caller.account().is_some();
        let items = rows.into_iter().map(|row| TagMove {
            position: row.position,
            tag: row.tag,
            moved_at: row.moved_at,
            actor: Some(row.actor).filter(|_| is_known),
            from: row.from,
            to: row.to,
            can_move_back: row.can_move_back,
            message: row.message,
        });
        Ok(Page::cut(items.collect(), limit))
    }

    /// Points a tag at the manifest from which it was moved or deleted: by the move at `position`, whatever
    /// followed; or by its last move, if there is no later one.
    pub(crate) async fn tag_move_back(
        &self,
        caller: &Caller,
        repository: &Repository,
        tag: &Tag,
        position: Option<i64>,
    ) -> Result<TagMovedBack, Error> {
        self.check_push_manifest(caller, repository).await?;
        let protected = self.protected_tags(repository).await?;
        let filter = TagMoveFilter { tag: Some(tag), position, before: None };
        let found = self.store.tag_moves(repository, filter, 1).await?;
        let Some(row) = found.first() else {
            return Err(Error::TagMoveUnknown { repository: repository.clone(), tag: tag.clone() });
        };
        let Some(digest) = &row.from else { return Err(Error::TagWasNew { tag: tag.clone() }) };
        let expected = position.is_none().then_some(row);
        let previous =
            retry_on_deadlock!(self.tag_set(caller, repository, (tag, digest), expected, &protected).await)?;
        tracing::info!(%repository, %tag, %digest, "tag moved back");
        Ok(TagMovedBack { tag: tag.clone(), digest: digest.clone(), previous })
    }

    /// Points a tag at a stored manifest. `expected`: the move after which it was not moved again.
    async fn tag_set(
        &self,
        caller: &Caller,
        repository: &Repository,
        (tag, digest): (&Tag, &Digest),
        expected: Option<&TagMoveRow>,
        protected: &ProtectedTags,
    ) -> Result<Option<Digest>, Error> {
        let mut tx = self.store.begin().await?;
        tx.repository_lock(repository).await?;
        // Marks it as referenced, which protects it from the collection.
        if !tx.manifests_reference(repository, std::slice::from_ref(digest)).await?.is_empty() {
            return Err(Error::TagTargetDeleted { tag: tag.clone(), digest: digest.clone() });
        }
        let actor = caller.actor();
        let previous = tx.tag_put(repository, tag, digest, &actor, None).await?;
        if expected.is_some_and(|last| last.to != previous) {
            return Err(Error::TagMoved { tag: tag.clone() });
        }
        if previous.as_ref() != Some(digest) {
            if previous.is_some() {
                protected.check(tag)?;
            }
            let event = Event::Tag { repository, tag, digest, previous: previous.as_ref() };
            self.announce(&mut tx, &actor, event).await?;
            let detail = json!({ "digest": digest, "previous": previous });
            self.audit(&mut tx, caller, "tag.undo", format!("{repository}:{tag}"), detail).await?;
        }
        tx.commit().await?;
        Ok(previous)
    }
}
