//! Why jobs fail, and what their callers may read of it.

use super::import_job::ImportError;
use super::{CreateError, HfImportError};
use crate::Error;
use crate::error::chain;

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error(transparent)]
    Create(CreateError),
    #[error(transparent)]
    Import(ImportError),
}

impl JobError {
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, JobError::Registry(Error::Cancelled))
    }

    /// The message for the caller, without internal details.
    pub(crate) fn public_message(&self) -> String {
        match self {
            JobError::Registry(error)
            | JobError::Import(
                ImportError::Registry(error) | ImportError::Hub(HfImportError::Registry(error)),
            ) => error.public_message(),
            JobError::Create(error) | JobError::Import(ImportError::Hub(HfImportError::Create(error))) => {
                chain(error)
            }
            // The causes may have texts of other servers, and are only for the log.
            JobError::Import(error) if error.is_transient() => {
                format!("{error}; what was fetched completely is kept: start it again to continue")
            }
            JobError::Import(error) => error.to_string(),
        }
    }
}

impl From<CreateError> for JobError {
    fn from(error: CreateError) -> JobError {
        match error {
            CreateError::Registry(error) => JobError::Registry(error),
            error => JobError::Create(error),
        }
    }
}

impl From<ImportError> for JobError {
    fn from(error: ImportError) -> JobError {
        match error {
            ImportError::Registry(error) => JobError::Registry(error),
            error => JobError::Import(error),
        }
    }
}
