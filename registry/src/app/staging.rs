//! Blobs that ollama's clients upload before they name a model: `/api/blobs` has no model name. They are
//! stored in a separate repository, under its rules and leases like any other upload, until a created model
//! mounts them. Unused ones are collected.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Body, ChunkRange, Registry};
use crate::Error;
use crate::auth::{Action, Caller, STAGING, Target};

/// The repository of staged blobs: each account has its own, and uses no other's.
pub(super) fn staging(caller: &Caller) -> Repository {
    let name = match caller.account() {
        Some(account) => format!("{STAGING}/{}", account.id),
        None => STAGING.to_owned(),
    };
    name.parse().expect("ids are lower-case letters, digits and dashes")
}

/// Whether a repository is for staged blobs, of any account.
pub(super) fn is_staging(repository: &Repository) -> bool {
    let below = repository.as_str().strip_prefix(STAGING);
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Registry {
    /// Whether the blob is stored already, so that the caller need not upload it. If so, it is leased for the
    /// upload lease.
    pub async fn staged_stat(&self, caller: &Caller, digest: &Digest) -> Result<bool, Error> {
        let staging = staging(caller);
        self.authorize(caller, Action::Push, Target::Repository(&staging)).await?;
        Ok(self.blob_stat_or_mount(caller, &staging, digest).await?.is_some())
    }

    /// Stores a blob. Returns false if it was stored already and the body was not read.
    pub async fn staged_put(
        &self,
        caller: &Caller,
        digest: &Digest,
        length: Option<u64>,
        body: Body,
    ) -> Result<bool, Error> {
        if self.staged_stat(caller, digest).await? {
            return Ok(false);
        }
        let chunk = ChunkRange { range: None, length };
        self.blob_put(caller, &staging(caller), digest, chunk, body).await?;
        Ok(true)
    }
}
