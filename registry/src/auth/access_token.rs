//! Access tokens of the distribution API, and links to blobs.

use lode_model::digest::Digest;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::caller::Credential;
use super::scope::RepositoryScope;

/// The content of an access token. Rights are evaluated at each request; the token only says who it is for.
#[derive(Serialize, Deserialize)]
pub(crate) struct AccessToken {
    /// The account and the credential with which the token was requested. Both are absent for a client without
    /// credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) account: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential: Option<Credential>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) worker: Option<Uuid>,
    pub(crate) epoch: i64,
    pub(crate) scopes: Vec<RepositoryScope>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) catalog: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) mount: bool,
    /// Of a link: the blob that it opens, of the repository of its scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blob: Option<Digest>,
    /// Seconds since 1970.
    pub(crate) expires: i64,
}

impl AccessToken {
    /// About how much memory it takes.
    pub(crate) fn size_bytes(&self) -> usize {
        let scopes = self.scopes.iter().map(|scope| size_of_val(scope) + scope.repository.as_str().len());
        size_of::<AccessToken>() + scopes.sum::<usize>()
    }
}
