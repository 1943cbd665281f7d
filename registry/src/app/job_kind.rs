//! The kinds of jobs and their parameters, as the database stores them.

use std::collections::BTreeMap;

use lode_model::digest::Digest;
use lode_model::modelfile::Edits;
use lode_model::reference::{Reference, Repository};
use serde::{Deserialize, Serialize};

use crate::auth::{Caller, Credential, Scope};

/// The work of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobKind {
    Gc { dry_run: bool },
    Fsck { verify: bool },
    Create(Box<CreateJob>),
    Import(Box<ImportJob>),
}

impl JobKind {
    /// The name of [`JobKind::Create`].
    pub(crate) const CREATE: &str = "create";
    /// The name of [`JobKind::Import`].
    pub(crate) const IMPORT: &str = "import";

    pub(super) fn name(&self) -> &'static str {
        match self {
            JobKind::Gc { .. } => "gc",
            JobKind::Fsck { .. } => "fsck",
            JobKind::Create(_) => JobKind::CREATE,
            JobKind::Import(_) => JobKind::IMPORT,
        }
    }

    /// The action of its start in the audit log.
    pub(super) fn start_action(&self) -> &'static str {
        match self {
            JobKind::Gc { .. } => "gc.start",
            JobKind::Fsck { .. } => "fsck.start",
            JobKind::Create(_) => "create.start",
            JobKind::Import(_) => "import.start",
        }
    }

    /// Whether it changes the content of the registry.
    pub(super) fn writes(&self) -> bool {
        matches!(self, JobKind::Gc { dry_run: false } | JobKind::Create(_) | JobKind::Import(_))
    }
}

/// The parameters of a job that creates a model from a stored one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreateJob {
    pub(super) repository: Repository,
    pub(super) reference: Reference,
    pub(super) from: BaseModel,
    /// The format of the weights, as `lode convert --to` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) format: Option<String>,
    /// The number format of the weights, as `lode create --quantize` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quantize: Option<String>,
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    pub(super) edits: Edits,
    #[serde(flatten)]
    pub(super) rights: JobRights,
}

/// The parameters of a job that copies a model from another server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImportJob {
    pub(super) repository: Repository,
    pub(super) reference: Reference,
    pub(super) source: ImportSource,
    #[serde(flatten)]
    pub(super) rights: JobRights,
}

/// The model on another server, as it was when the job started.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ImportSource {
    /// Its manifests are stored unchanged.
    Registry(RegistryModel),
    /// Its files become a model.
    Hub(HfModel),
}

/// A model on another registry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RegistryModel {
    /// The base URL.
    pub(super) address: String,
    pub(super) repository: Repository,
    /// As the caller named it.
    pub(super) reference: Reference,
    pub(super) digest: Digest,
}

/// A model on a server with the API of the Hugging Face Hub.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HfModel {
    /// The URL of the server.
    pub(super) endpoint: String,
    /// `acme/llama`
    pub(super) name: String,
    pub(super) commit: String,
    /// Which of several GGUF files: a part of its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) variant: Option<String>,
    /// The number format of the weights, as `lode create --quantize` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quantize: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

/// The limits of the credential that started a job. A run has the rights that the account has then, within
/// them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobRights {
    pub(super) scope: Scope,
    /// The job ends if it is revoked. `None` without an account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) credential: Option<Credential>,
}

impl JobRights {
    pub(super) fn of(caller: &Caller) -> JobRights {
        let account = caller.account();
        JobRights {
            scope: account.map(|account| account.scope.clone()).unwrap_or_default(),
            credential: account.map(|account| account.credential),
        }
    }
}

/// The model from which another is created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct BaseModel {
    pub(super) repository: Repository,
    /// The manifest that its name referred to when the job started.
    pub(super) digest: Digest,
    /// As the caller named it.
    pub(super) name: String,
}
