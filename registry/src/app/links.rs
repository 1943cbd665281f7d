//! Signed URLs of blobs, for clients that fetch bytes without credentials (ollama-style direct downloads). A
//! link names its blob and its expiry under a MAC, whose key the replicas share.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use sha2::Sha256;

use super::Registry;
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::time::{millis, now_ms};

/// A link must outlive the slowest download of its blob, because such clients resolve it only once.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

const KEY_NAME: &str = "blob-links";

/// The query parameters of a signed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobLink {
    /// Seconds since 1970.
    pub expires: i64,
    /// Hexadecimal.
    pub signature: String,
}

impl Registry {
    /// A link to a blob that the caller may read.
    pub async fn blob_link(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<BlobLink, Error> {
        allow(caller, Action::Pull, Target::Repository(repository))?;
        let expires = (now_ms() + millis(LIFETIME)) / 1000;
        let mac = self.blob_link_mac(repository, digest, expires).await?.finalize().into_bytes();
        Ok(BlobLink { expires, signature: hex::encode(mac) })
    }

    /// The caller that a link authenticates. `None` if the signature is invalid or the link has expired.
    pub async fn blob_link_verify(
        &self,
        repository: &Repository,
        digest: &Digest,
        expires: &str,
        signature: &str,
    ) -> Result<Option<Caller>, Error> {
        let (Ok(expires), Ok(signature)) = (expires.parse::<i64>(), hex::decode(signature)) else {
            return Ok(None);
        };
        let mac = self.blob_link_mac(repository, digest, expires).await?;
        let good = mac.verify_slice(&signature).is_ok() && expires > now_ms() / 1000;
        Ok(good.then(|| Caller::Link { repository: repository.clone() }))
    }

    async fn blob_link_mac(
        &self,
        repository: &Repository,
        digest: &Digest,
        expires: i64,
    ) -> Result<Hmac<Sha256>, Error> {
        let key = self.link_key.get_or_try_init(|| self.server_key(KEY_NAME)).await?;
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(format!("{repository}\n{digest}\n{expires}").as_bytes());
        Ok(mac)
    }

    pub(super) async fn server_key(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut fresh = [0; 32];
        getrandom::fill(&mut fresh)
            .map_err(|error| Error::io("random bytes", std::io::Error::other(error)))?;
        self.store().server_key(name, &fresh).await
    }
}
