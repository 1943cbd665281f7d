//! Copies of models from other servers as a job: from a registry, or from a server with the API of the Hugging
//! Face Hub. No client has to stay connected, another replica takes over if this one stops, and each run fetches
//! only what is not stored yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lode_client::{Login, RawManifest, RetryPolicy, Secret};
use lode_model::digest::Digest;
use lode_model::import::Conversion;
use lode_model::manifest::Manifest;
use lode_model::modelfile::Edits;
use lode_model::reference::{Reference, Repository};
use serde::Serialize;

use super::hf_import::HfFiles;
use super::hf_selection::select;
use super::job_control::{FetchProgress, JobControl};
use super::job_kind::{HfModel, ImportJob, ImportSource, JobKind, JobRights, RegistryModel};
use super::jobs::Job;
use super::transfer::INTERACTIVE_RETRY;
use super::walk::blobs_of;
use super::{
    CreateError, HfImportError, ModelSource, NewModel, Registry, RemoteModel, TransferError, TransferEvent,
    TransferSink,
};
use crate::Error;
use crate::auth::Caller;
use crate::hf_client::HfError;
use crate::store::JobRun;

/// How often a request of a job is repeated: more often than for a caller who waits, because a registry may be
/// restarting.
const JOB_RETRY: RetryPolicy =
    RetryPolicy { attempts: 8, base: Duration::from_millis(500), cap: Duration::from_secs(20) };
/// The longest time that a run may take, so that a slow server does not occupy this one for ever.
const TIME_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
const SOURCE_ANNOTATION: &str = "org.opencontainers.image.source";
const REVISION_ANNOTATION: &str = "org.opencontainers.image.revision";

/// A copy to make.
#[derive(Clone, Debug)]
pub(crate) struct NewImport {
    pub(crate) repository: Repository,
    pub(crate) reference: Reference,
    pub(crate) from: ImportFrom,
}

/// The model to copy.
#[derive(Clone, Debug)]
pub(crate) enum ImportFrom {
    Registry {
        /// A base URL or `host[:port]`.
        address: String,
        repository: Repository,
        reference: Reference,
        login: Option<Login>,
    },
    Hub {
        /// The URL of the server.
        endpoint: String,
        token: Option<Secret>,
        /// `acme/llama`
        name: String,
        revision: String,
        /// Which of several GGUF files: a part of its name.
        variant: Option<String>,
        quantize: Option<Conversion>,
        annotations: BTreeMap<String, String>,
    },
}

/// The result of the job.
#[derive(Debug, Serialize)]
pub(crate) struct ImportedModel {
    digest: Digest,
    /// The blobs of the source: layers of manifests, or files.
    blobs: u64,
    bytes: u64,
    /// Those that this run has fetched. The others were stored already.
    fetched_blobs: u64,
    fetched_bytes: u64,
    notices: Vec<String>,
}

/// Why a model cannot be copied from another server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error(transparent)]
    Hub(HfImportError),
    #[error(
        "{server} has no {repository}{}: check the name, and whether the login may read it",
        suffix(reference)
    )]
    Unknown { server: String, repository: Repository, reference: Reference },
    #[error(
        "{server} does not let this server read {repository}: it {reason}; send the login of an account that may"
    )]
    Refused { server: String, repository: Repository, reason: &'static str },
    #[error("{server}/{repository} cannot be copied: {error}")]
    Transfer {
        server: String,
        repository: Repository,
        #[source]
        error: TransferError,
    },
    #[error("the source has the digest {found}, not {expected}: use a tag as the destination")]
    OtherDigest { expected: Digest, found: Digest },
    #[error("the copy took longer than {hours} hours; start it again to fetch the rest")]
    TooSlow { hours: u64 },
}

impl ImportError {
    /// Whether the same copy may succeed later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            ImportError::Hub(error) => matches!(error, HfImportError::Hub(HfError::Unavailable { .. })),
            ImportError::Transfer { error: TransferError::Remote(error), .. } => error.is_transient(),
            _ => false,
        }
    }
}

impl From<HfImportError> for ImportError {
    fn from(error: HfImportError) -> ImportError {
        match error {
            HfImportError::Registry(error) => ImportError::Registry(error),
            error => ImportError::Hub(error),
        }
    }
}

impl From<HfError> for ImportError {
    fn from(error: HfError) -> ImportError {
        ImportError::Hub(error.into())
    }
}

impl From<CreateError> for ImportError {
    fn from(error: CreateError) -> ImportError {
        HfImportError::from(error).into()
    }
}

/// `:v1` or `@sha256:...`
fn suffix(reference: &Reference) -> String {
    match reference {
        Reference::Tag(tag) => format!(":{tag}"),
        Reference::Digest(digest) => format!("@{digest}"),
    }
}

/// The error of a request to the registry that has the model.
fn from_transfer(remote: &RemoteModel, error: TransferError) -> ImportError {
    let (server, repository) = (remote.registry.server(), remote.repository.clone());
    match error {
        TransferError::Registry(error) => ImportError::Registry(error),
        TransferError::RemoteUnknown { repository, reference, .. } => {
            ImportError::Unknown { server, repository, reference }
        }
        TransferError::Remote(lode_client::Error::Unauthorized { .. }) => {
            ImportError::Refused { server, repository, reason: "requires a login (401)" }
        }
        TransferError::Remote(lode_client::Error::Denied { .. }) => {
            ImportError::Refused { server, repository, reason: "refused the request (403)" }
        }
        error => ImportError::Transfer { server, repository, error },
    }
}

/// Counts the reports of a transfer, which have the completed bytes of each blob.
fn count_transfers(progress: FetchProgress) -> TransferSink {
    let in_progress: Mutex<HashMap<Digest, u64>> = Mutex::default();
    Arc::new(move |event| {
        let TransferEvent::Blob { digest, total, completed } = event else { return };
        let mut in_progress = in_progress.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match completed < total {
            true => in_progress.insert(digest, completed),
            false => in_progress.remove(&digest),
        };
        progress.add(completed.saturating_sub(before.unwrap_or_default()));
    })
}

impl Registry {
    /// Adds a job that copies a model from another server. The source is resolved now: the caller learns at once
    /// if it cannot be read, and all runs of the job copy the same content.
    pub(crate) async fn import_start(&self, caller: &Caller, new: NewImport) -> Result<Job, ImportError> {
        let NewImport { repository, reference, from } = new;
        self.check_push_manifest(caller, &repository).await?;
        let (source, secret) = match from {
            ImportFrom::Registry { address, repository, reference: name, login } => {
                let secret = login.as_ref().map(login_secret);
                let remote = self.import_remote(&address, repository, name, login, INTERACTIVE_RETRY)?;
                let digest = remote.manifest().await.map_err(|error| from_transfer(&remote, error))?.digest;
                if let Reference::Digest(expected) = &reference
                    && *expected != digest
                {
                    return Err(ImportError::OtherDigest { expected: expected.clone(), found: digest });
                }
                let RemoteModel { registry, repository, reference } = remote;
                let address = registry.url().to_string();
                (ImportSource::Registry(RegistryModel { address, repository, reference, digest }), secret)
            }
            ImportFrom::Hub { endpoint, token, name, revision, variant, quantize, annotations } => {
                let commit = self.hf_client(&endpoint, token.clone())?.commit(&name, &revision).await?;
                let quantize = quantize.map(|quantize| quantize.to_string());
                let model = HfModel { endpoint, name, commit, variant, quantize, annotations };
                (ImportSource::Hub(model), token)
            }
        };
        let job = ImportJob { repository, reference, source, rights: JobRights::of(caller) };
        Ok(self.job_add(caller, JobKind::Import(Box::new(job)), secret.as_ref()).await?)
    }

    /// Does the work of the job, with the rights that the account has now. They are checked again before manifests are
    /// written; meanwhile, the runner checks them.
    pub(crate) async fn import_run(
        &self,
        job: &ImportJob,
        account: Option<&str>,
        secret: Option<Secret>,
        run: &JobRun,
        control: &JobControl,
    ) -> Result<String, ImportError> {
        let caller = self.job_caller(account, &job.rights).await?;
        let caller = self.caller_recheck(&caller, &job.repository, None).await?;
        let work = async {
            match &job.source {
                ImportSource::Registry(model) => {
                    let fetched = self.registry_fetch(&caller, job, model, secret, control).await?;
                    self.registry_store(&caller, job, fetched, run, control).await
                }
                ImportSource::Hub(model) => {
                    let fetched = self.hf_fetch(&caller, model, secret, control).await?;
                    self.hf_store(&caller, job, model, fetched, run, control).await
                }
            }
        };
        let hours = TIME_LIMIT.as_secs() / 3600;
        tokio::time::timeout(TIME_LIMIT, work).await.unwrap_or(Err(ImportError::TooSlow { hours }))
    }

    fn import_remote(
        &self,
        address: &str,
        repository: Repository,
        reference: Reference,
        login: Option<Login>,
        retry: RetryPolicy,
    ) -> Result<RemoteModel, ImportError> {
        match self.remote_registry(address, login, retry) {
            Ok(registry) => Ok(RemoteModel { registry, repository, reference }),
            Err(error) => Err(ImportError::Transfer { server: address.to_owned(), repository, error }),
        }
    }

    /// Fetches manifests, and stores those blobs that are not stored yet.
    async fn registry_fetch(
        &self,
        caller: &Caller,
        job: &ImportJob,
        model: &RegistryModel,
        secret: Option<Secret>,
        control: &JobControl,
    ) -> Result<FetchedManifests, ImportError> {
        let RegistryModel { address, repository, digest, .. } = model;
        let login = secret.as_ref().map(read_login).transpose()?;
        let reference = Reference::Digest(digest.clone());
        let remote = self.import_remote(address, repository.clone(), reference, login, JOB_RETRY)?;
        let failed = |error| from_transfer(&remote, error);
        control.report_progress("reading manifests", 0, None);
        let manifests = self.manifests_fetch(&remote).await.map_err(failed)?;
        let blobs = blobs_of(&manifests);
        let count = blobs.len() as u64;
        let bytes = blobs.iter().fold(0_u64, |sum, blob| sum.saturating_add(blob.size));
        let sink = count_transfers(FetchProgress::new(control, bytes));
        let fetched = self.blobs_fetch(caller, &remote, &job.repository, blobs, &sink).await;
        Ok(FetchedManifests { manifests, count, bytes, fetched: fetched.map_err(failed)? })
    }

    async fn registry_store(
        &self,
        caller: &Caller,
        job: &ImportJob,
        fetched: FetchedManifests,
        run: &JobRun,
        control: &JobControl,
    ) -> Result<String, ImportError> {
        control.report_progress("writing manifests", 0, None);
        let FetchedManifests { manifests, count, bytes, fetched } = fetched;
        let Some(((raw, manifest), children)) = manifests.split_last() else {
            return Err(Error::Interrupted.into());
        };
        let caller = &self.children_store(caller, children, &job.repository).await?;
        let target = (&job.repository, &job.reference);
        let content = (manifest.media_type.as_str(), raw.bytes.clone());
        let (fetched_blobs, fetched_bytes) = fetched;
        let notices = Vec::new();
        let imported =
            |digest| ImportedModel { digest, blobs: count, bytes, fetched_blobs, fetched_bytes, notices };
        Ok(self.manifest_put_for_job(caller, target, content, run, imported).await?)
    }

    /// Fetches the files of a model from the Hub.
    async fn hf_fetch(
        &self,
        caller: &Caller,
        model: &HfModel,
        token: Option<Secret>,
        control: &JobControl,
    ) -> Result<HfFiles, ImportError> {
        let HfModel { endpoint, name, commit, variant, .. } = model;
        let client = self.hf_client(endpoint, token)?;
        control.report_progress("reading the list of files", 0, None);
        let files = client.files(name, commit).await?;
        let files = select(files, variant.as_deref()).map_err(HfImportError::from)?;
        let bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
        let progress = FetchProgress::new(control, bytes);
        Ok(self.hf_files_fetch(caller, &client, (name, commit), files, &progress).await?)
    }

    async fn hf_store(
        &self,
        caller: &Caller,
        job: &ImportJob,
        model: &HfModel,
        files: HfFiles,
        run: &JobRun,
        control: &JobControl,
    ) -> Result<String, ImportError> {
        let HfModel { endpoint, name, commit, quantize, annotations, .. } = model;
        let HfFiles { digests, bytes, fetched, fetched_bytes } = files;
        let quantize = match quantize {
            Some(text) => Some(text.parse().map_err(|_| corrupt(text))?),
            None => None,
        };
        let blobs = digests.len() as u64;
        let mut annotations = annotations.clone();
        let source = || format!("{}/{name}", endpoint.trim_end_matches('/'));
        annotations.entry(SOURCE_ANNOTATION.to_owned()).or_insert_with(source);
        annotations.entry(REVISION_ANNOTATION.to_owned()).or_insert_with(|| commit.clone());
        let new = NewModel {
            repository: job.repository.clone(),
            reference: job.reference.clone(),
            from: ModelSource::Files(digests),
            extra: Vec::new(),
            edits: Edits { annotations, ..Edits::default() },
            conversion: quantize,
        };
        self.model_create_check(caller, &new).await?;
        let imported = |digest, notices| {
            let fetched_blobs = fetched;
            ImportedModel { digest, blobs, bytes, fetched_blobs, fetched_bytes, notices }
        };
        Ok(self.model_create_reporting(caller, new, run, control, imported).await?)
    }
}

/// Manifests whose blobs are stored.
struct FetchedManifests {
    manifests: Vec<(RawManifest, Manifest)>,
    /// The number and the size of their blobs.
    count: u64,
    bytes: u64,
    /// The same of those that were not stored before.
    fetched: (u64, u64),
}

fn login_secret(login: &Login) -> Secret {
    Secret::new(serde_json::to_string(login).expect("two texts serialise to JSON"))
}

fn read_login(secret: &Secret) -> Result<Login, Error> {
    serde_json::from_str(secret.expose()).map_err(|_| corrupt("its login"))
}

fn corrupt(value: &str) -> Error {
    Error::Corrupt { what: "job", value: value.to_owned() }
}
