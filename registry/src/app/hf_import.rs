//! Models on a server with the API of the Hugging Face Hub. The files are fetched as uploads of the caller, each
//! verified by its digest, so that they can be imported like files that a client has sent. Stored files are not
//! fetched again.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use lode_client::Secret;
use lode_model::digest::Digest;
use sha1::{Digest as _, Sha1};

use super::hf_selection::SelectionError;
use super::job_control::FetchProgress;
use super::{Body, CreateError, Registry};
use crate::auth::Caller;
use crate::hf_client::{HfClient, HfError, HfFile};
use crate::{BodyError, Error};

/// How many files are fetched at a time.
const MAX_CONCURRENT_FILES: usize = 4;
/// The largest file without a known sha256: it is read into memory. The Hub knows the sha256 of larger ones.
const MAX_SMALL_BYTES: u64 = 16 << 20;

/// Why a model cannot be imported from the Hub.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HfImportError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error(transparent)]
    Hub(#[from] HfError),
    #[error(transparent)]
    Selection(#[from] SelectionError),
    #[error("`{path}` has {size} bytes, and the server does not know its sha256")]
    DigestUnknown { path: String, size: u64 },
    #[error("`{path}` was not received as the server describes it")]
    Different { path: String },
    #[error(transparent)]
    Create(CreateError),
}

impl From<CreateError> for HfImportError {
    fn from(error: CreateError) -> HfImportError {
        match error {
            CreateError::Registry(error) => HfImportError::Registry(error),
            error => HfImportError::Create(error),
        }
    }
}

/// The files of a model, which are stored for the caller now.
#[derive(Debug, Default)]
pub(super) struct HfFiles {
    pub(super) digests: BTreeMap<String, Digest>,
    pub(super) bytes: u64,
    /// Those that were not stored before.
    pub(super) fetched: u64,
    pub(super) fetched_bytes: u64,
}

impl Registry {
    pub(super) fn hf_client(&self, endpoint: &str, token: Option<Secret>) -> Result<HfClient, HfError> {
        HfClient::new(endpoint, token, |url| self.egress_to(url))
    }

    /// Fetches those of the files that are not stored yet.
    pub(super) async fn hf_files_fetch(
        &self,
        caller: &Caller,
        client: &HfClient,
        (model, commit): (&str, &str),
        files: Vec<HfFile>,
        progress: &FetchProgress,
    ) -> Result<HfFiles, HfImportError> {
        stream::iter(files)
            .map(|file| async move {
                let (path, size) = (file.path.clone(), file.size);
                let fetched = self.hf_file_fetch(caller, client, (model, commit), file, progress).await;
                fetched.map(|(digest, was_fetched)| (path, size, digest, was_fetched))
            })
            .buffer_unordered(MAX_CONCURRENT_FILES)
            .try_fold(HfFiles::default(), |mut all, (path, size, digest, was_fetched)| async move {
                all.digests.insert(path, digest);
                all.bytes = all.bytes.saturating_add(size);
                all.fetched += u64::from(was_fetched);
                all.fetched_bytes = all.fetched_bytes.saturating_add(if was_fetched { size } else { 0 });
                Ok(all)
            })
            .await
    }

    /// Returns the digest of the file, and false if it was stored already.
    async fn hf_file_fetch(
        &self,
        caller: &Caller,
        client: &HfClient,
        (model, commit): (&str, &str),
        file: HfFile,
        progress: &FetchProgress,
    ) -> Result<(Digest, bool), HfImportError> {
        let Some(digest) = file.sha256.clone() else {
            let digest = self.hf_small_fetch(caller, client, (model, commit), &file).await?;
            progress.add(file.size);
            return Ok((digest, true));
        };
        if self.staged_stat(caller, &digest).await? {
            progress.add(file.size);
            return Ok((digest, false));
        }
        let body = client.open(model, commit, &file).await?;
        let counted = progress.clone();
        let body: Body = body.inspect_ok(move |piece| counted.add(piece.len() as u64)).boxed();
        self.staged_put(caller, &digest, Some(file.size), body).await.map_err(from_body)?;
        Ok((digest, true))
    }

    /// Fetches a small file, of which only the id in git is known.
    async fn hf_small_fetch(
        &self,
        caller: &Caller,
        client: &HfClient,
        (model, commit): (&str, &str),
        file: &HfFile,
    ) -> Result<Digest, HfImportError> {
        let (path, size) = (file.path.clone(), file.size);
        if size > MAX_SMALL_BYTES {
            return Err(HfImportError::DigestUnknown { path, size });
        }
        let different = || HfImportError::Different { path: path.clone() };
        let mut body = client.open(model, commit, file).await?;
        let mut bytes = BytesMut::new();
        while let Some(piece) =
            body.try_next().await.map_err(|error| from_body(Error::BodyInterrupted(error)))?
        {
            if (bytes.len() + piece.len()) as u64 > size {
                return Err(different());
            }
            bytes.extend_from_slice(&piece);
        }
        let bytes: Bytes = bytes.freeze();
        if bytes.len() as u64 != size || git_oid(&bytes) != file.oid {
            return Err(different());
        }
        let digest = Digest::sha256(&bytes);
        let body: Body = stream::iter([Ok::<_, BodyError>(bytes)]).boxed();
        self.staged_put(caller, &digest, Some(size), body).await?;
        Ok(digest)
    }
}

/// The error of the Hub, if it interrupted an upload.
fn from_body(error: Error) -> HfImportError {
    match error {
        Error::BodyInterrupted(reason) => match reason.downcast::<HfError>() {
            Ok(error) => HfImportError::Hub(*error),
            Err(reason) => Error::BodyInterrupted(reason).into(),
        },
        error => error.into(),
    }
}

fn git_oid(content: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex::encode(hasher.finalize())
}
