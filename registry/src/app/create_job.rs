//! The creation of a model as a job: no client has to stay connected while weights are quantised, and another
//! replica takes over if this one stops.

use std::sync::{Arc, Mutex, PoisonError};

use lode_model::digest::Digest;
use lode_model::reference::Reference;
use serde::Serialize;

use super::job_control::JobControl;
use super::job_kind::{BaseModel, CreateJob, JobKind};
use super::jobs::Job;
use super::sign_in::account_of;
use super::{CreateError, CreateStep, ModelSource, NewModel, Registry};
use crate::Error;
use crate::auth::{Caller, Credential, Identity, Scope};
use crate::error::chain;

/// The result of the job.
#[derive(Debug, Serialize)]
pub(crate) struct CreatedModel {
    digest: Digest,
    notices: Vec<String>,
}

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error(transparent)]
    Create(CreateError),
}

impl JobError {
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, JobError::Registry(Error::Cancelled))
    }

    /// The message for the caller, without internal details.
    pub(crate) fn public_message(&self) -> String {
        match self {
            JobError::Registry(error) => error.public_message(),
            JobError::Create(error) => chain(error),
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

impl Registry {
    /// Adds a job that creates a model from a stored one. It takes no uploaded files: those are deleted if no
    /// manifest references them.
    pub async fn model_create_start(&self, caller: &Caller, new: NewModel) -> Result<Job, CreateError> {
        self.model_create_check(caller, &new).await?;
        let NewModel { repository, reference, from, extra, edits, quantize } = new;
        let (true, ModelSource::Model { repository: base, reference: base_reference, name }) =
            (extra.is_empty(), from)
        else {
            return Err(CreateError::JobFiles);
        };
        let digest = match self.model_show(caller, &base, &base_reference).await? {
            Some(base) => base.digest,
            None => return Err(CreateError::BaseUnknown { name }),
        };
        let job = CreateJob {
            repository,
            reference,
            from: BaseModel { repository: base, digest, name },
            quantize: quantize.map(|quantize| quantize.to_string()),
            edits,
            scope: caller.account().map(|account| account.scope.clone()).unwrap_or_default(),
        };
        Ok(self.job_add(caller, JobKind::Create(Box::new(job))).await?)
    }

    /// Does the work of the job, with the rights that the account has now.
    pub(crate) async fn model_create_run(
        &self,
        job: &CreateJob,
        account: Option<&str>,
        control: &JobControl,
    ) -> Result<CreatedModel, JobError> {
        let caller = self.job_caller(account, &job.scope).await?;
        let corrupt = |value: &str| Error::Corrupt { what: "job", value: value.to_owned() };
        let quantize = match &job.quantize {
            Some(text) => Some(text.parse().map_err(|_| corrupt(text))?),
            None => None,
        };
        let new = NewModel {
            repository: job.repository.clone(),
            reference: job.reference.clone(),
            from: ModelSource::Model {
                repository: job.from.repository.clone(),
                reference: Reference::Digest(job.from.digest.clone()),
                name: job.from.name.clone(),
            },
            extra: Vec::new(),
            edits: job.edits.clone(),
            quantize,
        };
        let notices = Arc::new(Mutex::new(Vec::new()));
        let (reporting, noticed) = (control.clone(), notices.clone());
        let report = move |step| match step {
            CreateStep::Reading => reporting.report_progress("reading files", 0, None),
            CreateStep::Quantising { total, completed, .. } => {
                reporting.report_progress("quantising", completed, Some(total));
            }
            CreateStep::WritingManifest => reporting.report_progress("writing manifest", 0, None),
            CreateStep::Notice(notice) => noticed.lock().unwrap_or_else(PoisonError::into_inner).push(notice),
            CreateStep::Existing(_) | CreateStep::Created(_) => {}
        };
        let digest = self.model_create(&caller, new, &report).await?;
        let notices = std::mem::take(&mut *notices.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(CreatedModel { digest, notices })
    }

    /// The account that started a job, as a caller with the scope that it had then.
    async fn job_caller(&self, account: Option<&str>, scope: &Scope) -> Result<Caller, Error> {
        let Some(account) = account else { return Ok(Caller::ANONYMOUS) };
        let id = account.parse().map_err(|_| Error::Corrupt { what: "job", value: account.to_owned() })?;
        // A disabled or deleted account may do nothing any more.
        let row = self.account_live(id).await?.ok_or(Error::Denied)?;
        let account = account_of(&row, Credential::Password, scope.clone());
        Ok(Identity::Account(Arc::new(account)).into())
    }
}
