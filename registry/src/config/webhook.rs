//! A webhook of the settings: its URL, its secret, and the events that it receives.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use lode_client::Secret;
use lode_model::reference::Repository;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::Url;

use super::text::address;
use crate::OpenError;

/// One `[[webhook]]` table of the settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// Where events are posted.
    #[serde(with = "address")]
    pub url: Url,
    /// The signing secret: `whsec_` and base64, or any text.
    pub secret: Secret,
    /// The kinds of events; empty means all but `audit`.
    #[serde(default)]
    pub events: Vec<EventKind>,
    /// Patterns of repositories, such as `team/*`; empty means all.
    #[serde(default)]
    pub repositories: Patterns,
}

impl Webhook {
    /// `repository`: of the event, if it is about one.
    pub(crate) fn accepts(&self, kind: EventKind, repository: Option<&Repository>) -> bool {
        let is_wanted = match self.events.is_empty() {
            true => kind != EventKind::Audit,
            false => self.events.contains(&kind),
        };
        is_wanted && repository.is_none_or(|repository| self.repositories.matches(repository))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// A manifest was pushed.
    Push,
    /// A tag was set, or moved.
    Tag,
    /// A tag was removed.
    Untag,
    /// A manifest was removed.
    Delete,
    /// A repository was moved to another name.
    Move,
    /// A record was added to the audit log.
    Audit,
}

impl EventKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            EventKind::Push => "push",
            EventKind::Tag => "tag",
            EventKind::Untag => "untag",
            EventKind::Delete => "delete",
            EventKind::Move => "move",
            EventKind::Audit => "audit",
        }
    }
}

/// Patterns of repository names: `*` matches within one part of the name, `**` any number of parts.
#[derive(Clone, Default)]
pub struct Patterns {
    texts: Vec<String>,
    set: GlobSet,
}

impl Patterns {
    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    fn matches(&self, repository: &Repository) -> bool {
        self.texts.is_empty() || self.set.is_match(repository.as_str())
    }
}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.texts.fmt(f)
    }
}

impl Serialize for Patterns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.texts.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let compile = || {
            let mut set = GlobSetBuilder::new();
            for text in &texts {
                set.add(GlobBuilder::new(text).literal_separator(true).build()?);
            }
            set.build()
        };
        let set = compile().map_err(serde::de::Error::custom)?;
        Ok(Patterns { texts, set })
    }
}

/// Checks the settings. Pending events are stored by URL, so each URL may occur once.
pub(crate) fn check_webhooks(webhooks: &[Webhook]) -> Result<(), OpenError> {
    for (at, webhook) in webhooks.iter().enumerate() {
        let url = &webhook.url;
        let reason = if !matches!(url.scheme(), "http" | "https") {
            format!("expected an http or https URL, got {}:", url.scheme())
        } else if webhooks[..at].iter().any(|other| other.url == *url) {
            format!("{}{} is configured twice", url.host_str().unwrap_or_default(), url.path())
        } else if webhook.secret.expose().is_empty() {
            "the secret is empty".to_owned()
        } else {
            continue;
        };
        return Err(OpenError::Config { setting: "webhook", reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(json: serde_json::Value) -> Result<Webhook, serde_json::Error> {
        serde_json::from_value(json)
    }

    #[test]
    fn patterns_match_whole_name_parts() {
        let hook = |patterns: &[&str]| {
            webhook(serde_json::json!({"url": "https://x/", "secret": "s", "repositories": patterns}))
                .unwrap()
        };
        let wants =
            |patterns: &[&str], name: &str| hook(patterns).repositories.matches(&name.parse().unwrap());
        assert!(wants(&[], "any/thing"));
        assert!(wants(&["team/*"], "team/mini"));
        assert!(!wants(&["team/*"], "team/sub/mini"));
        assert!(wants(&["team/**"], "team/sub/mini"));
        assert!(!wants(&["team/*"], "other/mini"));
        assert!(wants(&["a", "b-*"], "b-1"));
        assert!(
            webhook(serde_json::json!({"url": "https://x/", "secret": "s", "repositories": ["["]})).is_err()
        );
        assert!(
            webhook(serde_json::json!({"url": "https://x/", "secret": "s", "events": ["pull"]})).is_err()
        );
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let hook =
            |url: &str, secret: &str| webhook(serde_json::json!({"url": url, "secret": secret})).unwrap();
        let error_text = |hooks: &[Webhook]| {
            check_webhooks(hooks).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(error_text(&[hook("https://a/", "s"), hook("https://b/", "s")]), "");
        assert!(
            error_text(&[hook("https://a/x", "s"), hook("https://a/x", "t")])
                .contains("a/x is configured twice")
        );
        assert!(error_text(&[hook("ftp://a/", "s")]).contains("ftp"));
        assert!(error_text(&[hook("https://a/", "")]).contains("secret"));
        let shown = serde_json::to_string(&hook("https://u:hush@a/?token=hush", "hush")).unwrap();
        assert!(!shown.contains("hush"), "{shown}");
    }
}
