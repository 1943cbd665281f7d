//! Imports of models from a server with the API of the Hugging Face Hub. The files are fetched as uploads of the caller,
//! each verified by its digest, and then imported like files that a client has sent. A repeated import fetches only the
//! files that are not stored yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::import::Quantize;
use lode_model::modelfile::Edits;
use lode_model::reference::{Reference, Repository};
use sha1::{Digest as _, Sha1};

use super::hub_selection::{SelectionError, select};
use super::{Body, CreateError, CreateStep, ModelSource, NewModel, Registry};
use crate::auth::Caller;
use crate::hub_client::{HubClient, HubError, HubFile};
use crate::{BodyError, Error};

/// How many files are fetched at a time.
const FILES_AT_ONCE: usize = 4;
/// The largest file without a known sha256: it is read into memory. The Hub knows the sha256 of larger ones.
const MAX_SMALL_BYTES: u64 = 16 << 20;
const SOURCE_ANNOTATION: &str = "org.opencontainers.image.source";
const REVISION_ANNOTATION: &str = "org.opencontainers.image.revision";

/// A model on the Hub.
#[derive(Clone, Debug)]
pub(crate) struct HubModel {
    /// The URL of the server.
    pub(crate) endpoint: String,
    pub(crate) token: Option<Secret>,
    /// `acme/llama`
    pub(crate) name: String,
    pub(crate) revision: String,
    /// Which of several GGUF files: a part of its name.
    pub(crate) variant: Option<String>,
}

/// The model to create from it.
#[derive(Clone, Debug)]
pub(crate) struct ImportTarget {
    pub(crate) repository: Repository,
    pub(crate) reference: Reference,
    pub(crate) quantize: Option<Quantize>,
    pub(crate) annotations: BTreeMap<String, String>,
}

/// A step of an import.
#[derive(Clone, Debug)]
pub(crate) enum ImportStep {
    /// The files that will be fetched, and their total size.
    Selected {
        commit: String,
        files: usize,
        bytes: u64,
    },
    File {
        path: String,
        total: u64,
        completed: u64,
    },
    Create(CreateStep),
}

pub(crate) type ImportSink = Arc<dyn Fn(ImportStep) + Send + Sync>;

/// Why a model cannot be imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubImportError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Selection(#[from] SelectionError),
    #[error("`{path}` has {size} bytes, and the server does not know its sha256")]
    DigestUnknown { path: String, size: u64 },
    #[error("`{path}` was not received as the server describes it")]
    Different { path: String },
    #[error(transparent)]
    Create(CreateError),
}

impl From<CreateError> for HubImportError {
    fn from(error: CreateError) -> HubImportError {
        match error {
            CreateError::Registry(error) => HubImportError::Registry(error),
            error => HubImportError::Create(error),
        }
    }
}

impl Registry {
    /// Imports a model, and returns the digest of its manifest.
    pub(crate) async fn hub_import(
        &self,
        caller: &Caller,
        source: &HubModel,
        target: ImportTarget,
        tell: &ImportSink,
    ) -> Result<Digest, HubImportError> {
        self.check_push_manifest(caller, &target.repository).await?;
        // 1. Find the revision, and choose its files. A server that only this machine reaches may import from it.
        let client = HubClient::new(&source.endpoint, source.token.clone(), |url| {
            let is_local = url.host_str().is_some_and(lode_client::is_loopback_host);
            match is_local && !self.is_known_closed() && self.config().is_on_loopback() {
                true => self.egress().with_permitted(url),
                false => self.egress().clone(),
            }
        })?;
        let commit = client.commit(&source.name, &source.revision).await?;
        let files = select(client.files(&source.name, &commit).await?, source.variant.as_deref())?;
        let bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
        tell(ImportStep::Selected { commit: commit.clone(), files: files.len(), bytes });
        // 2. Fetch those that are not stored.
        let fetched: Vec<(String, Digest)> = stream::iter(files)
            .map(|file| self.hub_file_fetch(caller, &client, (&source.name, &commit), file, tell))
            .buffer_unordered(FILES_AT_ONCE)
            .try_collect()
            .await?;
        // 3. Import them.
        let mut annotations = target.annotations;
        annotations.entry(SOURCE_ANNOTATION.to_owned()).or_insert_with(|| client.model_url(&source.name));
        annotations.entry(REVISION_ANNOTATION.to_owned()).or_insert(commit);
        let new = NewModel {
            repository: target.repository,
            reference: target.reference,
            from: ModelSource::Files(fetched.into_iter().collect()),
            extra: Vec::new(),
            edits: Edits { annotations, ..Edits::default() },
            quantize: target.quantize,
        };
        self.model_create_check(caller, &new).await?;
        let report = |step| tell(ImportStep::Create(step));
        Ok(self.model_create(caller, new, &report).await?)
    }

    async fn hub_file_fetch(
        &self,
        caller: &Caller,
        client: &HubClient,
        (model, commit): (&str, &str),
        file: HubFile,
        tell: &ImportSink,
    ) -> Result<(String, Digest), HubImportError> {
        let report = |completed| {
            tell(ImportStep::File { path: file.path.clone(), total: file.size, completed });
        };
        report(0);
        let Some(digest) = file.sha256.clone() else {
            let digest = self.hub_small_fetch(caller, client, (model, commit), &file).await?;
            report(file.size);
            return Ok((file.path, digest));
        };
        if !self.staged_stat(caller, &digest).await? {
            let body = client.open(model, commit, &file).await?;
            let (tell, path, total) = (tell.clone(), file.path.clone(), file.size);
            let mut completed = 0;
            let body: Body = body
                .inspect_ok(move |piece| {
                    completed += piece.len() as u64;
                    tell(ImportStep::File { path: path.clone(), total, completed });
                })
                .boxed();
            self.staged_put(caller, &digest, Some(file.size), body).await.map_err(from_body)?;
        }
        report(file.size);
        Ok((file.path, digest))
    }

    /// Fetches a small file, of which only the id in git is known.
    async fn hub_small_fetch(
        &self,
        caller: &Caller,
        client: &HubClient,
        (model, commit): (&str, &str),
        file: &HubFile,
    ) -> Result<Digest, HubImportError> {
        let (path, size) = (file.path.clone(), file.size);
        if size > MAX_SMALL_BYTES {
            return Err(HubImportError::DigestUnknown { path, size });
        }
        let different = || HubImportError::Different { path: path.clone() };
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
fn from_body(error: Error) -> HubImportError {
    match error {
        Error::BodyInterrupted(reason) => match reason.downcast::<HubError>() {
            Ok(error) => HubImportError::Hub(*error),
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
