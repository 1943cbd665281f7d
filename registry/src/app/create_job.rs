//! The creation of a model as a job: no client has to stay connected while weights are quantised, and another
//! replica takes over if this one stops.

use std::sync::{Mutex, PoisonError};

use lode_model::digest::Digest;
use lode_model::import::Conversion;
use lode_model::reference::Reference;
use serde::Serialize;

use super::job_control::JobControl;
use super::job_error::JobError;
use super::job_kind::{BaseModel, CreateJob, JobKind, JobRights};
use super::jobs::Job;
use super::{CreateError, CreateStep, ModelSource, NewModel, Registry};
use crate::Error;
use crate::auth::Caller;
use crate::store::JobRun;

/// The result of the job.
#[derive(Debug, Serialize)]
pub(crate) struct CreatedModel {
    digest: Digest,
    notices: Vec<String>,
}

impl Registry {
    /// Adds a job that creates a model from a stored one. It takes no uploaded files: those are deleted if no
    /// manifest references them.
    pub async fn model_create_start(&self, caller: &Caller, new: NewModel) -> Result<Job, CreateError> {
        self.model_create_check(caller, &new).await?;
        let NewModel { repository, reference, from, extra, edits, conversion } = new;
        let (true, ModelSource::Model { repository: base, reference: base_reference, name }) =
            (extra.is_empty(), from)
        else {
            return Err(CreateError::JobFiles);
        };
        let digest = match self.model_show(caller, &base, &base_reference).await? {
            Some(base) => base.digest,
            None => return Err(CreateError::BaseUnknown { name }),
        };
        let (format, quantize) = conversion.map(Conversion::named).unwrap_or_default();
        let job = CreateJob {
            repository,
            reference,
            from: BaseModel { repository: base, digest, name },
            format: format.map(|format| format.as_str().to_owned()),
            quantize,
            edits,
            rights: JobRights::of(caller),
        };
        Ok(self.job_add(caller, JobKind::Create(Box::new(job)), None).await?)
    }

    /// Does the work of the job, with the rights that the account has now. They are checked again before the manifest
    /// is written; meanwhile, the runner checks them.
    pub(crate) async fn model_create_run(
        &self,
        job: &CreateJob,
        account: Option<&str>,
        run: &JobRun,
        control: &JobControl,
    ) -> Result<String, JobError> {
        let caller = self.job_caller(account, &job.rights).await?;
        let caller = self.caller_recheck(&caller, &job.repository, Some(&job.from.repository)).await?;
        let corrupt = |value: &str| Error::Corrupt { what: "job", value: value.to_owned() };
        let format = job.format.as_deref().map(|text| text.parse().map_err(|_| corrupt(text))).transpose()?;
        let conversion = Conversion::read(format, job.quantize.as_deref())
            .map_err(|_| corrupt(job.quantize.as_deref().unwrap_or_default()))?;
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
            conversion,
        };
        let created = |digest, notices| CreatedModel { digest, notices };
        Ok(self.model_create_reporting(&caller, new, run, control, created).await?)
    }

    /// Creates a model, and reports its steps as the progress of a job. Returns the job's result, which `result_of`
    /// makes of the digest and the notices.
    pub(super) async fn model_create_reporting<T: Serialize>(
        &self,
        caller: &Caller,
        new: NewModel,
        run: &JobRun,
        control: &JobControl,
        result_of: impl FnOnce(Digest, Vec<String>) -> T,
    ) -> Result<String, CreateError> {
        let notices = Mutex::new(Vec::new());
        let report = |step| match step {
            CreateStep::Reading => control.report_progress("reading files", 0, None),
            CreateStep::Converting { to, total, completed } => {
                let phase = if to.is_quantisation() { "quantising" } else { "converting" };
                control.report_bytes(phase, completed, total);
            }
            CreateStep::WritingManifest => control.report_progress("writing manifest", 0, None),
            CreateStep::Notice(notice) => notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice),
            CreateStep::Existing(_) | CreateStep::Created(_) => {}
        };
        let (repository, reference) = (new.repository.clone(), new.reference.clone());
        let (caller, kind, bytes) = self.layers_create(caller, new, &report).await?;
        let notices = notices.into_inner().unwrap_or_else(PoisonError::into_inner);
        let result_of = |digest| result_of(digest, notices);
        Ok(self
            .manifest_put_for_job(&caller, (&repository, &reference), (&kind, bytes), run, result_of)
            .await?)
    }
}
