//! The rights of work that takes long: a job, or a request whose body arrives slowly. They are read again while a job
//! runs, and before a manifest is stored.

use std::sync::Arc;

use lode_model::reference::Repository;

use super::Registry;
use super::job_kind::{JobKind, JobRights};
use crate::Error;
use crate::auth::{Action, Caller, Identity, Target};

impl Registry {
    /// The caller as its account is now, within the limits of the credential that started the work. The error is
    /// [`Error::CredentialRevoked`] once the account is disabled or deleted, or the credential is revoked. The end of
    /// a session or of a token's time does not end the work.
    pub(super) async fn caller_refresh(&self, caller: &Caller) -> Result<Caller, Error> {
        let Some(account) = caller.account() else { return Ok(caller.clone()) };
        let account = self.account_of_work(account.id, Some(account.credential), &account.scope).await?;
        Ok(caller.with_identity(Identity::Account(Arc::new(account.ok_or(Error::CredentialRevoked)?))))
    }

    /// Like `caller_refresh`, for work that stores a manifest in a repository, and reads `base`. The error is
    /// [`Error::RoleRevoked`] if the caller may no longer do either.
    pub(super) async fn caller_recheck(
        &self,
        caller: &Caller,
        repository: &Repository,
        base: Option<&Repository>,
    ) -> Result<Caller, Error> {
        let caller = self.caller_refresh(caller).await?;
        let pushes = self.check_push_manifest(&caller, repository).await;
        pushes.map_err(|error| revoked("push to", repository, error))?;
        if let Some(base) = base {
            let reads = self.authorize(&caller, Action::Pull, Target::Repository(base)).await;
            reads.map_err(|error| revoked("read", base, error))?;
        }
        Ok(caller)
    }

    /// The account that started a job, as a caller with the limits of the credential that started it.
    pub(super) async fn job_caller(
        &self,
        account: Option<&str>,
        rights: &JobRights,
    ) -> Result<Caller, Error> {
        let Some(account) = account else { return Ok(Caller::ANONYMOUS) };
        let id = account.parse().map_err(|_| Error::Corrupt { what: "job", value: account.to_owned() })?;
        let account = self.account_of_work(id, rights.credential, &rights.scope).await?;
        Ok(Identity::Account(Arc::new(account.ok_or(Error::CredentialRevoked)?)).into())
    }

    /// Checks that the account that started a job may still store its result.
    pub(crate) async fn job_recheck(&self, kind: &JobKind, account: Option<&str>) -> Result<(), Error> {
        let (rights, repository, base) = match kind {
            JobKind::Create(job) => (&job.rights, &job.repository, Some(&job.from.repository)),
            JobKind::Import(job) => (&job.rights, &job.repository, None),
            // The server does the same by itself, with rights of its own.
            JobKind::Gc { .. } | JobKind::Fsck { .. } => return Ok(()),
        };
        let caller = self.job_caller(account, rights).await?;
        self.caller_recheck(&caller, repository, base).await.map(drop)
    }
}

/// The error of a refusal while work is in progress.
fn revoked(action: &'static str, repository: &Repository, error: Error) -> Error {
    match error.is_refusal() {
        true => Error::RoleRevoked { action, repository: repository.clone() },
        false => error,
    }
}
