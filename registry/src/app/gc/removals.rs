//! The records of removals: what was removed, when and why, and until when it can be restored.

use lode_model::reference::Repository;
use serde::Serialize;
use utoipa::ToSchema;

use crate::Error;
use crate::app::Registry;
use crate::auth::{Action, Caller, Target};
use crate::store::{RemovalReason, RemovalRow};
use crate::time::as_rfc3339_option;

/// The longest page of records.
const PAGE: u32 = 1000;

/// Content that was removed, or that a dry run would remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Removal {
    /// `tag`, `manifest` or `blob`.
    pub kind: String,
    /// Its repository. A blob without one was removed from the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    pub digest: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// `deleted`, `unreferenced`, `keep_last` or `untagged`.
    pub reason: String,
    /// The number of the retention rule, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    // Milliseconds since 1970, like all times here; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub removed_at: Option<i64>,
    /// Until when it can be restored.
    #[serde(serialize_with = "as_rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub undo_until: Option<i64>,
    /// When it was restored.
    #[serde(serialize_with = "as_rfc3339_option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub restored_at: Option<i64>,
    /// Who removed it: `user:alice`, `anonymous`, or `server` for the garbage collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
}

/// A page of records, newest first, and the cursor of the next page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RemovalPage {
    pub removals: Vec<Removal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Registry {
    /// Removals, newest first: at most `n`, after the end of an earlier page.
    pub async fn removals(
        &self,
        caller: &Caller,
        repository: Option<&Repository>,
        after: Option<&str>,
        n: Option<u32>,
    ) -> Result<RemovalPage, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let n = n.map_or(PAGE, |n| n.clamp(1, PAGE));
        let mut rows = self.store.removal_list(repository, after, i64::from(n) + 1).await?;
        let more = rows.len() > n as usize;
        rows.truncate(n as usize);
        let next = rows.last().filter(|_| more).map(|row| row.id.clone());
        Ok(RemovalPage { removals: rows.into_iter().map(Removal::from).collect(), next })
    }
}

impl Removal {
    /// A removal that a dry run reports.
    pub(super) fn planned_removal(
        kind: &str,
        repository: Option<&Repository>,
        digest: &str,
        reason: RemovalReason,
    ) -> Removal {
        Removal {
            kind: kind.to_owned(),
            repository: repository.map(|repository| repository.as_str().to_owned()),
            tag: None,
            digest: digest.to_owned(),
            size_bytes: None,
            reason: reason.as_str().to_owned(),
            rule: reason.rule(),
            removed_at: None,
            undo_until: None,
            restored_at: None,
            actor: None,
        }
    }
}

impl From<RemovalRow> for Removal {
    fn from(row: RemovalRow) -> Removal {
        Removal {
            undo_until: Some(row.undo_until).filter(|until| *until > row.removed_at),
            kind: row.kind,
            repository: row.repository,
            tag: row.tag,
            digest: row.digest,
            size_bytes: row.size_bytes.and_then(|size| u64::try_from(size).ok()),
            reason: row.reason,
            rule: row.rule.and_then(|rule| u32::try_from(rule).ok()),
            removed_at: Some(row.removed_at),
            restored_at: row.restored_at,
            actor: row.actor,
        }
    }
}
