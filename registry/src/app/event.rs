//! Webhook events and their JSON: `type`, `timestamp` and `data`, as in the Standard Webhooks specification.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use serde_json::{Value, json};

use crate::config::EventKind;
use crate::time::rfc3339;

/// A change in a repository.
#[derive(Clone, Copy)]
pub(crate) enum Event<'a> {
    Push {
        repository: &'a Repository,
        digest: &'a Digest,
        media_type: &'a str,
        size_bytes: u64,
        tags: &'a [Tag],
    },
    /// `previous`: the tag's previous manifest; None if the tag is new.
    Tag {
        repository: &'a Repository,
        tag: &'a Tag,
        digest: &'a Digest,
        previous: Option<&'a Digest>,
    },
    Untag {
        repository: &'a Repository,
        tag: &'a Tag,
        digest: &'a Digest,
        reason: &'a str,
    },
    /// A manifest is deleted with its tags.
    Delete {
        repository: &'a Repository,
        digest: &'a Digest,
        tags: &'a [Tag],
        reason: &'a str,
    },
    /// A repository has another name.
    Move {
        repository: &'a Repository,
        from: &'a Repository,
    },
}

impl Event<'_> {
    pub(crate) fn kind(&self) -> EventKind {
        match self {
            Event::Push { .. } => EventKind::Push,
            Event::Tag { .. } => EventKind::Tag,
            Event::Untag { .. } => EventKind::Untag,
            Event::Delete { .. } => EventKind::Delete,
            Event::Move { .. } => EventKind::Move,
        }
    }

    /// The repository, and its name before.
    pub(crate) fn repositories(&self) -> [&Repository; 2] {
        match self {
            Event::Push { repository, .. }
            | Event::Tag { repository, .. }
            | Event::Untag { repository, .. }
            | Event::Delete { repository, .. } => [repository, repository],
            Event::Move { repository, from } => [repository, from],
        }
    }

    /// The request body for an event at `now_ms`. `actor`: see [`crate::auth::Caller::actor`].
    pub(crate) fn payload(&self, now_ms: i64, actor: &str) -> String {
        let mut data = self.data();
        data["actor"] = actor.into();
        json!({ "type": self.kind().as_str(), "timestamp": rfc3339(now_ms), "data": data }).to_string()
    }

    fn data(&self) -> Value {
        match self {
            Event::Push { repository, digest, media_type, size_bytes, tags } => json!({
                "repository": repository, "digest": digest, "media_type": media_type,
                "size_bytes": size_bytes, "tags": tags,
            }),
            Event::Tag { repository, tag, digest, previous } => json!({
                "repository": repository, "tag": tag, "digest": digest, "previous": previous,
            }),
            Event::Untag { repository, tag, digest, reason } => json!({
                "repository": repository, "tag": tag, "digest": digest, "reason": reason,
            }),
            Event::Delete { repository, digest, tags, reason } => json!({
                "repository": repository, "digest": digest, "tags": tags, "reason": reason,
            }),
            Event::Move { repository, from } => json!({ "repository": repository, "from": from }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_as_it_is_posted() {
        let repository: Repository = "team/mini".parse().unwrap();
        let (digest, tags) = (Digest::sha256(b""), ["8b".parse().unwrap()]);
        let event = Event::Tag { repository: &repository, tag: &tags[0], digest: &digest, previous: None };
        assert_eq!(
            event.payload(1_795_000_000_250, "user:alice"),
            format!(
                r#"{{"type":"tag","timestamp":"2026-11-18T11:06:40.25Z","data":{{"repository":"team/mini","tag":"8b","digest":"{digest}","previous":null,"actor":"user:alice"}}}}"#
            )
        );
        let delete =
            Event::Delete { repository: &repository, digest: &digest, tags: &tags, reason: "request" };
        assert!(delete.payload(0, "server").contains(r#""tags":["8b"],"reason":"request","actor":"server""#));
        let from: Repository = "team/old".parse().unwrap();
        let moved = Event::Move { repository: &repository, from: &from };
        let data = r#"{"type":"move","timestamp":"1970-01-01T00:00:00Z","data":{"repository":"team/mini","from":"team/old","actor":"server"}}"#;
        assert_eq!(moved.payload(0, "server"), data);
    }
}
