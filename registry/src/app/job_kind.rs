//! The kinds of jobs and their parameters, as the database stores them.

use lode_model::digest::Digest;
use lode_model::modelfile::Edits;
use lode_model::reference::{Reference, Repository};
use serde::{Deserialize, Serialize};

use crate::auth::Scope;

/// The work of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum JobKind {
    Gc { dry_run: bool },
    Fsck { verify: bool },
    Create(Box<CreateJob>),
}

impl JobKind {
    /// The name of [`JobKind::Create`].
    pub(crate) const CREATE: &str = "create";

    pub(super) fn name(&self) -> &'static str {
        match self {
            JobKind::Gc { .. } => "gc",
            JobKind::Fsck { .. } => "fsck",
            JobKind::Create(_) => JobKind::CREATE,
        }
    }

    /// The action of its start in the audit log.
    pub(super) fn start_action(&self) -> &'static str {
        match self {
            JobKind::Gc { .. } => "gc.start",
            JobKind::Fsck { .. } => "fsck.start",
            JobKind::Create(_) => "create.start",
        }
    }

    /// Whether it changes the content of the registry.
    pub(super) fn writes(&self) -> bool {
        matches!(self, JobKind::Gc { dry_run: false } | JobKind::Create(_))
    }
}

/// The parameters of a job that creates a model from a stored one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreateJob {
    pub(super) repository: Repository,
    pub(super) reference: Reference,
    pub(super) from: BaseModel,
    /// The number format of the weights, as `lode create --quantize` names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) quantize: Option<String>,
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    pub(super) edits: Edits,
    /// The limits of the credential that started the job.
    pub(super) scope: Scope,
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
