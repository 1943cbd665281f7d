//! The other servers that the settings name: the registries that this one mirrors, and the webhooks that it calls.

use serde::Serialize;
use utoipa::ToSchema;

use super::Registry;
use crate::auth::{Action, Caller, Target};
use crate::config::redact_url;
use crate::{Error, MirrorConfig, Webhook};

/// The mirrors and webhooks of the settings, without their secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Connections {
    pub(crate) mirrors: Vec<MirrorSummary>,
    pub(crate) webhooks: Vec<WebhookSummary>,
}

/// A registry that is mirrored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct MirrorSummary {
    /// Repositories whose names start with this are mirrored; empty means all.
    pub(crate) prefix: String,
    /// The URL of the other registry.
    pub(crate) upstream: String,
    /// As whom this server signs in there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) username: Option<String>,
    /// How long a tag is served before it is compared with the other registry.
    pub(crate) check_after_seconds: u64,
}

/// A webhook that is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct WebhookSummary {
    pub(crate) url: String,
    /// The kinds of events that it receives; empty means all but `audit`.
    pub(crate) events: Vec<&'static str>,
    /// Patterns of the repositories whose events it receives; empty means all.
    pub(crate) repositories: Vec<String>,
}

impl Registry {
    pub(crate) async fn connections(&self, caller: &Caller) -> Result<Connections, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let config = self.config();
        Ok(Connections {
            mirrors: config.mirror.iter().map(MirrorSummary::from).collect(),
            webhooks: config.webhook.iter().map(WebhookSummary::from).collect(),
        })
    }
}

impl From<&MirrorConfig> for MirrorSummary {
    fn from(mirror: &MirrorConfig) -> MirrorSummary {
        MirrorSummary {
            prefix: mirror.prefix.clone(),
            upstream: redact_url(&mirror.upstream).into(),
            username: mirror.username.clone(),
            check_after_seconds: mirror.check_after.as_secs(),
        }
    }
}

impl From<&Webhook> for WebhookSummary {
    fn from(webhook: &Webhook) -> WebhookSummary {
        WebhookSummary {
            url: redact_url(&webhook.url).into(),
            events: webhook.events.iter().map(|kind| kind.as_str()).collect(),
            repositories: webhook.repositories.texts().to_vec(),
        }
    }
}
