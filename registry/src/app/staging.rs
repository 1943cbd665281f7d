//! Blobs that ollama's clients send before they say what for: `/api/blobs` has no name of a model in it. They lie in a repository of
//! their own, under its rules and leases like any other upload, until a model is made that mounts them; what nobody uses is collected.

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Body, ChunkRange, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};

/// What that repository is called.
const STAGING: &str = "lode-staging";

/// Where what a caller sends waits. As soon as callers can be told apart, each needs one of their own.
pub(super) fn staging() -> Repository {
    STAGING.parse().expect("a constant that is a name")
}

impl Registry {
    /// Need a caller not send this blob? A yes keeps it for the upload lease, wherever it was.
    pub async fn staged_stat(&self, caller: &Caller, digest: &Digest) -> Result<bool, Error> {
        let staging = staging();
        allow(caller, Action::Push, Target::Repository(&staging))?;
        match self.blob_stat(caller, &staging, digest).await {
            Ok(_) => Ok(true),
            Err(Error::BlobUnknown { .. }) => {
                Ok(self.blob_mount(caller, &staging, digest, None).await?.is_some())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a blob. False: it was here already, and the body was not needed.
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
        self.blob_put(caller, &staging(), digest, chunk, body).await?;
        Ok(true)
    }
}
