//! Authorisation: reads the rights of a caller and applies the policy. What was read is remembered for as long
//! as the database's version of access control stays the same. The version is read again every half second, so
//! a revocation takes effect on every replica within that time.

use std::sync::Arc;

use lode_model::reference::Repository;
use uuid::Uuid;

use super::Registry;
use super::access_cache::RightsKey;
use crate::Error;
use crate::auth::{
    AccessTarget, Account, Action, Caller, Identity, Requested, Rights, Role, Scope, Target, Visibility,
    decide, decide_at_once, decide_some,
};
use crate::store::{AccessState, ListFilter};
use crate::upstream::find_upstream;

/// How many namespaces are listed for an account.
const MAX_NAMESPACES: i64 = 1000;

impl Registry {
    /// Returns an error if `caller` may not do this. `Unauthorized` asks for credentials; `NameUnknown` is also
    /// the error of a repository that does not exist; `Denied` is final.
    pub(crate) async fn authorize(
        &self,
        caller: &Caller,
        action: Action,
        target: Target<'_>,
    ) -> Result<(), Error> {
        let decided = self.check(caller, action, target).await;
        if decided.as_ref().is_err_and(Error::is_refusal) {
            self.audit_refusal(caller, action, target);
        }
        decided
    }

    /// Like `authorize`, without a record in the audit log.
    pub(super) async fn check(
        &self,
        caller: &Caller,
        action: Action,
        target: Target<'_>,
    ) -> Result<(), Error> {
        if let Some(decision) = decide_at_once(&caller.identity, action) {
            return decision.into_result(&caller.identity, action, target);
        }
        let state = self.access_state().await?;
        if !state.has_accounts {
            return Ok(());
        }
        let rights = match target {
            Target::Repository(repository) => {
                self.rights(state, caller, AccessTarget::Repository(repository.clone())).await?
            }
            Target::Settings(target) => self.rights(state, caller, target.clone()).await?,
            _ => Rights::default(),
        };
        decide(&caller.identity, action, target, rights).into_result(&caller.identity, action, target)
    }

    /// Returns an error if `caller` may do this to no target. Checked before the body that names the target is
    /// read.
    pub(crate) async fn authorize_some(&self, caller: &Caller, action: Action) -> Result<(), Error> {
        if !self.access_state().await?.has_accounts {
            return Ok(());
        }
        decide_some(&caller.identity, action).into_result(&caller.identity, action, Target::Server)
    }

    /// Whether the caller may do this to a repository.
    pub(crate) async fn may(
        &self,
        caller: &Caller,
        action: Action,
        repository: &Repository,
    ) -> Result<bool, Error> {
        self.is_allowed(caller, action, Target::Repository(repository)).await
    }

    /// Whether the caller may change the settings of a repository or a namespace.
    pub(crate) async fn may_configure(&self, caller: &Caller, target: &AccessTarget) -> Result<bool, Error> {
        self.is_allowed(caller, Action::Own, Target::Settings(target)).await
    }

    /// Whether the caller may protect tags of a repository, and see the rules that remove them.
    pub(crate) async fn may_maintain(&self, caller: &Caller, repository: &Repository) -> Result<bool, Error> {
        let target = AccessTarget::Repository(repository.clone());
        self.is_allowed(caller, Action::Maintain, Target::Settings(&target)).await
    }

    /// Whether the caller may see the state of the server.
    pub(crate) async fn may_inspect(&self, caller: &Caller) -> Result<bool, Error> {
        self.is_allowed(caller, Action::Inspect, Target::Server).await
    }

    /// Returns an error unless the caller may see the state of the server, or owns the target. The error names the
    /// role of owners.
    pub(super) async fn authorize_owner(&self, caller: &Caller, target: &AccessTarget) -> Result<(), Error> {
        match self.may_inspect(caller).await? {
            true => Ok(()),
            false => self.authorize(caller, Action::Own, Target::Settings(target)).await,
        }
    }

    /// Whether the caller may change the server and its workers.
    pub(crate) async fn may_administer(&self, caller: &Caller) -> Result<bool, Error> {
        self.is_allowed(caller, Action::Administer, Target::Workers).await
    }

    async fn is_allowed(&self, caller: &Caller, action: Action, target: Target<'_>) -> Result<bool, Error> {
        match self.check(caller, action, target).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_refusal() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the caller's account may read a repository, whatever the caller's credential is limited to.
    pub(super) async fn may_see(&self, caller: &Caller, repository: &Repository) -> Result<bool, Error> {
        let whole = caller.account().map(|account| {
            let account = Account { scope: Scope::default(), ..Account::clone(account) };
            caller.with_identity(Identity::Account(Arc::new(account)))
        });
        self.may(whole.as_ref().unwrap_or(caller), Action::Pull, repository).await
    }

    /// Whether anyone who reaches this server may do everything: it has no accounts.
    pub async fn is_open(&self) -> Result<bool, Error> {
        Ok(!self.access_state().await?.has_accounts)
    }

    /// Whether the server may have accounts, as far as is known without a query.
    pub(crate) fn may_have_accounts(&self) -> bool {
        self.access.fresh().is_none_or(|state| state.has_accounts)
    }

    /// Whether the server had accounts when that was last read. Needs no query.
    pub(crate) fn is_known_closed(&self) -> bool {
        self.access.last_state().is_some_and(|state| state.has_accounts)
    }

    /// The repositories that a listing may show to the caller. An access token that was not requested for listings
    /// narrows them to its own.
    pub(super) async fn list_filter(&self, caller: &Caller) -> Result<ListFilter, Error> {
        let filter = self.readable_filter(caller).await?;
        Ok(match caller.account().and_then(|account| account.scope.requested.as_ref()) {
            Some(requested) if !requested.catalog => narrow(filter, caller, requested),
            _ => filter,
        })
    }

    /// The repositories from which the caller may take a blob that it knows by digest. An access token that was not
    /// requested for mounts narrows them to its own.
    pub(super) async fn source_filter(&self, caller: &Caller) -> Result<ListFilter, Error> {
        let filter = self.readable_filter(caller).await?;
        Ok(match caller.account().and_then(|account| account.scope.requested.as_ref()) {
            Some(requested) if !requested.mount => narrow(filter, caller, requested),
            _ => filter,
        })
    }

    /// The repositories that the caller's account may read with a credential of these targets.
    async fn readable_filter(&self, caller: &Caller) -> Result<ListFilter, Error> {
        if !self.access_state().await?.has_accounts {
            return Ok(ListFilter::All);
        }
        Ok(match &caller.identity {
            Identity::Internal | Identity::Worker { .. } => ListFilter::All,
            Identity::Account(account)
                if account.server_role.is_some() && account.scope.targets.is_empty() =>
            {
                ListFilter::All
            }
            Identity::Account(account) => ListFilter::Readable {
                visibility: match account.server_role {
                    Some(_) => Visibility::Private,
                    None => Visibility::Internal,
                },
                subjects: subjects(caller),
                targets: account.scope.targets.clone(),
            },
            Identity::Anonymous | Identity::Guest { .. } => ListFilter::Readable {
                visibility: Visibility::Public,
                subjects: Vec::new(),
                targets: Vec::new(),
            },
        })
    }

    /// Who may read a repository without a role, for those who may read it. `None`: the server has no accounts.
    pub(crate) async fn visibility(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<Option<Visibility>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let state = self.access_state().await?;
        if !state.has_accounts {
            return Ok(None);
        }
        let target = AccessTarget::Repository(repository.clone());
        Ok(Some(self.rights(state, &Caller::ANONYMOUS, target).await?.visibility))
    }

    /// The names of the namespaces in which the caller has a role.
    pub(crate) async fn namespaces_of(&self, caller: &Caller) -> Result<Vec<(String, Role)>, Error> {
        let found = self.store().namespaces_granted(&subjects(caller), MAX_NAMESPACES).await?;
        let name = |target: AccessTarget| target.to_string().trim_end_matches("/*").to_owned();
        Ok(found.into_iter().map(|(target, role)| (name(target), role)).collect())
    }

    /// The state of access control, at most half a second old.
    pub(super) async fn access_state(&self) -> Result<AccessState, Error> {
        if let Some(state) = self.access.fresh() {
            return Ok(state);
        }
        let _reading = self.access.reading.lock().await;
        if let Some(state) = self.access.fresh() {
            return Ok(state);
        }
        self.access.read(self.store()).await
    }

    async fn rights(
        &self,
        state: AccessState,
        caller: &Caller,
        target: AccessTarget,
    ) -> Result<Rights, Error> {
        let key = RightsKey { version: state.version, subjects: subjects(caller), target };
        if let Some(known) = self.access.rights.get(&key) {
            return Ok(known);
        }
        let (rights, is_stored) = self.store().rights_find(&key.target, &key.subjects).await?;
        // A repository that does not exist looks like a private one, so that the two cannot be told apart. Below a
        // mirrored prefix, a read may create it. Creating a repository does not raise the version: this is not
        // remembered.
        if let AccessTarget::Repository(repository) = &key.target
            && !is_stored
            && find_upstream(&self.upstreams, repository).is_none()
        {
            return Ok(Rights { visibility: Visibility::Private, ..rights });
        }
        self.access.rights.insert(key, rights);
        Ok(rights)
    }
}

/// Narrows a listing to the repositories that an access token may pull.
fn narrow(filter: ListFilter, caller: &Caller, requested: &Requested) -> ListFilter {
    let covers =
        |repository: &Repository| caller.account().is_none_or(|account| account.scope.covers(repository));
    let readable = requested.repositories.iter().filter(|scope| scope.pull && covers(&scope.repository));
    let targets: Vec<AccessTarget> =
        readable.map(|scope| AccessTarget::Repository(scope.repository.clone())).collect();
    match filter {
        _ if targets.is_empty() => ListFilter::None,
        ListFilter::None => ListFilter::None,
        ListFilter::All => {
            ListFilter::Readable { visibility: Visibility::Private, subjects: Vec::new(), targets }
        }
        ListFilter::Readable { visibility, subjects, .. } => {
            ListFilter::Readable { visibility, subjects, targets }
        }
    }
}

/// The ids to which grants of the caller are made: its own and those of its groups.
fn subjects(caller: &Caller) -> Vec<Uuid> {
    let of_account =
        |account: &Arc<Account>| std::iter::once(account.id).chain(account.groups.iter().copied()).collect();
    caller.account().map(of_account).unwrap_or_default()
}
