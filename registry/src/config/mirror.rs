//! The settings of a mirrored prefix.

use std::time::Duration;

use lode_client::{Secret, duration};
use serde::{Deserialize, Serialize};
use url::Url;

use super::text::address;

/// `[[mirror]]`: repositories below a prefix are fetched from another registry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// Repositories whose names start with this prefix are mirrored; the rest of the name is the upstream's.
    /// Ends in `/`, or is empty for all repositories.
    pub prefix: String,
    /// The upstream: scheme and host, and a path to mirror only the repositories below it.
    #[serde(with = "address")]
    pub upstream: Url,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// How long a tag is served before the upstream is checked again.
    #[serde(default = "check_after", with = "duration")]
    pub check_after: Duration,
    /// Allow http to an upstream beyond this machine. Anyone on the network path can then replace the content
    /// of a tag.
    #[serde(default)]
    pub plain_http: bool,
}

fn check_after() -> Duration {
    Duration::from_secs(5 * 60)
}
