//! A retention rule of the settings.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use lode_client::duration_option;

/// One `[[retention]]` table of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionRule {
    /// Patterns of repositories: `*` does not match a slash, `**` does.
    pub repositories: Vec<String>,
    /// How many tags to keep, the most recently moved first; tags that match `keep` are not counted. Not set:
    /// all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
    /// Patterns of tags that are kept at any age.
    pub keep: Vec<String>,
    /// Age at which a manifest is removed if it has no tag, no parent index and no subject. Not set: never.
    #[serde(with = "duration_option", skip_serializing_if = "Option::is_none")]
    pub remove_untagged_after: Option<Duration>,
}
