//! The caller of a request, and the policy, which decides whether a caller may do an action. The policy is a pure
//! function of the caller's identity and of its rights in the database at that moment.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use lode_model::reference::Repository;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::role::{AccessTarget, Role, ServerRole, Visibility};
use super::scope::{Access, RepositoryScope, Scope};
use crate::Error;

/// The repository of blobs that clients upload before they name a model. Below it, each account has its own.
pub(crate) const STAGING: &str = "lode-staging";

/// Who sends a request, and from where. The HTTP layer builds it from the request's credentials.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub identity: Identity,
    /// Absent for work that no request started.
    pub origin: Option<Arc<Origin>>,
}

/// Who sends a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Identity {
    /// A client without credentials.
    #[default]
    Anonymous,
    /// A client with an access token that it got without credentials.
    Guest {
        scopes: Arc<[RepositoryScope]>,
    },
    Account(Arc<Account>),
    /// A worker of this registry. It may read every model.
    Worker {
        id: Uuid,
    },
    /// A part of this server, such as the model index job.
    Internal,
}

/// Where a request came from, for the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub address: Option<IpAddr>,
    /// The client's `User-Agent`.
    pub agent: Option<String>,
    /// The id of the request, as in the log.
    pub request: String,
}

impl Caller {
    pub const ANONYMOUS: Caller = Caller { identity: Identity::Anonymous, origin: None };
    /// A part of this server.
    pub const INTERNAL: Caller = Caller { identity: Identity::Internal, origin: None };

    pub fn is_internal(&self) -> bool {
        self.identity == Identity::Internal
    }

    pub fn account(&self) -> Option<&Arc<Account>> {
        match &self.identity {
            Identity::Account(account) => Some(account),
            _ => None,
        }
    }

    /// Its name in records: `user:alice`, `robot:team+ci`, `worker:ID`, `anonymous` or `server`.
    pub fn actor(&self) -> String {
        match &self.identity {
            Identity::Anonymous | Identity::Guest { .. } => "anonymous".to_owned(),
            Identity::Account(account) => format!("{}:{}", account.kind.as_str(), account.name),
            Identity::Worker { id } => format!("worker:{id}"),
            Identity::Internal => "server".to_owned(),
        }
    }

    /// The same origin with another identity.
    pub(crate) fn with_identity(&self, identity: Identity) -> Caller {
        Caller { identity, origin: self.origin.clone() }
    }
}

impl From<Identity> for Caller {
    fn from(identity: Identity) -> Caller {
        Caller { identity, origin: None }
    }
}

/// A signed-in account and the limits of the credential that it used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Account {
    pub id: Uuid,
    pub kind: AccountKind,
    pub name: String,
    pub server_role: Option<ServerRole>,
    /// The groups that it is a member of.
    pub groups: Vec<Uuid>,
    /// Raised in the database to invalidate its sessions and access tokens.
    pub epoch: i64,
    pub credential: Credential,
    pub scope: Scope,
}

/// How an account has signed in, with the id of the credential in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Credential {
    Password,
    Token(Uuid),
    /// A browser's cookie.
    Session(Uuid),
    /// A key of ollama.
    Key(Uuid),
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credential::Password => f.write_str("password"),
            Credential::Token(id) => write!(f, "token {id}"),
            Credential::Session(id) => write!(f, "session {id}"),
            Credential::Key(id) => write!(f, "key {id}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccountKind {
    User,
    /// A machine account of a namespace.
    Robot,
}

impl AccountKind {
    pub fn as_str(self) -> &'static str {
        match self {
            AccountKind::User => "user",
            AccountKind::Robot => "robot",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Pull,
    Push,
    Delete,
    /// Protect tags.
    Maintain,
    /// Grant roles, and set the visibility.
    Own,
    /// See names in a listing across repositories. The listing itself has only what the caller may read.
    List,
    /// See the state of the server: workers, jobs, removals, webhook deliveries.
    Inspect,
    /// Operate the server: run a garbage collection or fsck, cancel jobs, manage accounts.
    Administer,
    /// Run inference on a model.
    Infer,
    /// Register a worker, and report its state. The worker's own credential proves its right.
    Join,
    /// Use an API that requires a login, whatever rights the caller has there.
    SignIn,
}

impl Action {
    /// Its name in the audit log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Action::Pull => "pull",
            Action::Push => "push",
            Action::Delete => "delete",
            Action::Maintain => "maintain",
            Action::Own => "own",
            Action::List => "list",
            Action::Inspect => "inspect",
            Action::Administer => "administer",
            Action::Infer => "infer",
            Action::Join => "join",
            Action::SignIn => "sign_in",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    Repository(&'a Repository),
    /// All repositories together.
    Catalog,
    Workers,
    Server,
    /// The settings of a namespace or a repository: grants, visibility, protected tags.
    Settings(&'a AccessTarget),
    /// A job, and the account that started it.
    Job {
        owner: Option<Uuid>,
    },
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Repository(repository) => repository.fmt(f),
            Target::Catalog => f.write_str("catalog"),
            Target::Workers => f.write_str("workers"),
            Target::Server => f.write_str("server"),
            Target::Settings(target) => target.fmt(f),
            Target::Job { .. } => f.write_str("job"),
        }
    }
}

/// A caller's rights on a target, as the database has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    /// The highest role that was granted to the account or to one of its groups.
    pub(crate) role: Option<Role>,
    pub(crate) visibility: Visibility,
}

/// The policy's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allow,
    /// The caller may succeed with credentials, or with other ones.
    Authenticate,
    /// The account may do this, but its access token does not cover it: another token may succeed.
    Rescope,
    /// The caller must not learn whether the target exists.
    Hide,
    /// The caller may know that the target exists, but may not do this.
    Deny,
}

impl Decision {
    /// The error of a refusal.
    pub(crate) fn into_result(
        self,
        caller: &Identity,
        action: Action,
        target: Target<'_>,
    ) -> Result<(), Error> {
        match (self, target) {
            (Decision::Allow, _) => Ok(()),
            (Decision::Authenticate, _) => Err(Error::Unauthorized),
            (Decision::Rescope, _) => Err(Error::InsufficientScope),
            (Decision::Hide, Target::Repository(repository)) if action == Action::Push => {
                let namespace = AccessTarget::namespace_of(repository);
                let needs = missing_right(caller, action, Target::Settings(&namespace));
                Err(Error::PushHidden { repository: repository.clone(), needs })
            }
            (Decision::Hide, Target::Repository(repository)) => {
                Err(Error::NameUnknown { repository: repository.clone() })
            }
            (Decision::Hide | Decision::Deny, _) => {
                Err(Error::Denied { needs: missing_right(caller, action, target) })
            }
        }
    }
}

/// The right that a caller lacks for an action, as the text of the error.
fn missing_right(caller: &Identity, action: Action, target: Target<'_>) -> String {
    let scope = match caller {
        Identity::Account(account) => &account.scope,
        Identity::Worker { .. } => return "workers may only read models and run inference".to_owned(),
        Identity::Anonymous | Identity::Guest { .. } | Identity::Internal => {
            return "it needs an account".to_owned();
        }
    };
    let access = access_for(action);
    if scope.access < access {
        return format!("the token or key is limited; it needs one with the access `{}`", access.as_str());
    }
    let is_narrow = !scope.targets.is_empty() || scope.access < Access::Full;
    let (role, is_limited) = match (target, role_for(action)) {
        (Target::Repository(_) | Target::Settings(_), Some(role)) => {
            (format!("the role `{}` on `{target}`", role.as_str()), is_narrow)
        }
        _ => {
            let auditor = if matches!(action, Action::Inspect | Action::List) { "`auditor` or " } else { "" };
            (format!("the server role {auditor}`admin`"), is_narrow || scope.requested.is_some())
        }
    };
    match is_limited {
        false => format!("it needs {role}"),
        true => format!("it needs {role}, and a token or key that is not limited to less"),
    }
}

/// The role that an action needs on a repository, or on its settings.
fn role_for(action: Action) -> Option<Role> {
    match action {
        Action::Pull | Action::Infer | Action::List => Some(Role::Read),
        Action::Push => Some(Role::Write),
        Action::Delete | Action::Maintain => Some(Role::Maintain),
        Action::Own => Some(Role::Own),
        Action::Inspect | Action::Administer | Action::Join | Action::SignIn => None,
    }
}

/// Whether the policy needs no rights from the database to decide.
pub(crate) fn decide_at_once(caller: &Identity, action: Action) -> Option<Decision> {
    // A worker proves separately that it may join.
    let is_allowed = *caller == Identity::Internal || action == Action::Join;
    is_allowed.then_some(Decision::Allow)
}

/// Whether a caller may do something to any target at all.
pub(crate) fn decide_some(caller: &Identity, action: Action) -> Decision {
    let is_reading = matches!(action, Action::Pull | Action::Infer | Action::List | Action::Join);
    match caller {
        Identity::Internal => Decision::Allow,
        Identity::Anonymous | Identity::Guest { .. } if !is_reading => Decision::Authenticate,
        Identity::Worker { .. } if !is_reading => Decision::Deny,
        Identity::Account(account) if account.scope.access < access_for(action) => Decision::Deny,
        Identity::Anonymous | Identity::Guest { .. } | Identity::Account(_) | Identity::Worker { .. } => {
            Decision::Allow
        }
    }
}

/// Whether a caller may do something on a server with accounts.
pub(crate) fn decide(caller: &Identity, action: Action, target: Target<'_>, rights: Rights) -> Decision {
    if let Some(decision) = decide_at_once(caller, action) {
        return decision;
    }
    match (action, target) {
        // A listing has only what the caller may read.
        (Action::List, Target::Catalog) | (Action::Pull, Target::Server) => Decision::Allow,
        (Action::SignIn, _) => match caller {
            Identity::Anonymous => Decision::Authenticate,
            _ => Decision::Allow,
        },
        (_, Target::Repository(repository)) => decide_repository(caller, action, repository, rights),
        (_, Target::Settings(target)) => decide_settings(caller, action, target, rights),
        // An account follows and cancels the jobs that it has started.
        (Action::Inspect | Action::Administer, Target::Job { owner: Some(owner) })
            if is_own_job(caller, action, owner) =>
        {
            Decision::Allow
        }
        (Action::Inspect | Action::List, _) => {
            decide_server(caller, &[ServerRole::Auditor, ServerRole::Admin])
        }
        _ => decide_server(caller, &[ServerRole::Admin]),
    }
}

fn decide_repository(caller: &Identity, action: Action, repository: &Repository, rights: Rights) -> Decision {
    let Some(needed) = role_for(action) else { return Decision::Deny };
    let account = match caller {
        Identity::Anonymous | Identity::Guest { .. } => {
            let is_allowed = needed == Role::Read && rights.visibility == Visibility::Public;
            return if is_allowed { Decision::Allow } else { Decision::Authenticate };
        }
        Identity::Worker { .. } if needed == Role::Read => return Decision::Allow,
        Identity::Worker { .. } => return Decision::Deny,
        Identity::Internal => return Decision::Deny,
        Identity::Account(account) => account,
    };
    // An account uploads and reads blobs that it stages; a role is needed for anything else.
    let own_staging = repository.as_str().strip_prefix(STAGING).and_then(|rest| rest.strip_prefix('/'));
    let is_staging = matches!(action, Action::Push | Action::Pull);
    if is_staging && own_staging.is_some_and(|id| id == account.id.to_string()) {
        let may_write = account.scope.access >= Access::Write;
        return if may_write { Decision::Allow } else { Decision::Deny };
    }
    // A limited credential does not reveal other repositories: a token for one repository is often given to others.
    if !account.scope.covers(repository) {
        return Decision::Hide;
    }
    let as_reader = (rights.visibility >= Visibility::Internal).then_some(Role::Read);
    let on_server = account.server_role.map(ServerRole::on_repositories);
    let Some(role) = rights.role.max(as_reader).max(on_server) else { return Decision::Hide };
    let scope = &account.scope;
    if role < needed || scope.access < access_for(action) {
        return Decision::Deny;
    }
    match &scope.requested {
        Some(requested) if !requested.repositories.iter().any(|scope| allows(scope, action, repository)) => {
            Decision::Rescope
        }
        _ => Decision::Allow,
    }
}

fn is_own_job(caller: &Identity, action: Action, owner: Uuid) -> bool {
    let needed = if action == Action::Inspect { Access::Read } else { Access::Write };
    matches!(caller, Identity::Account(account) if account.id == owner && account.scope.access >= needed)
}

/// Whether a caller may change the settings of a target: its owner, some of them its maintainer.
fn decide_settings(caller: &Identity, action: Action, target: &AccessTarget, rights: Rights) -> Decision {
    let account = match caller {
        Identity::Anonymous | Identity::Guest { .. } => return Decision::Authenticate,
        Identity::Account(account) => account,
        _ => return Decision::Deny,
    };
    let needed = if action == Action::Maintain { Role::Maintain } else { Role::Own };
    let Scope { access, targets, requested } = &account.scope;
    let has_role = rights.role >= Some(needed) || account.server_role == Some(ServerRole::Admin);
    let is_covered = *access >= access_for(action)
        && requested.is_none()
        && (targets.is_empty()
            || targets.iter().any(|covered| match target {
                AccessTarget::Namespace(_) => covered == target,
                AccessTarget::Repository(repository) => covered.contains(repository),
            }));
    if has_role && is_covered { Decision::Allow } else { Decision::Deny }
}

fn allows(scope: &RepositoryScope, action: Action, repository: &Repository) -> bool {
    let is_named = match action {
        Action::Pull | Action::Infer | Action::List => scope.pull,
        Action::Push => scope.push,
        Action::Delete => scope.delete,
        _ => false,
    };
    is_named && scope.repository == *repository
}

fn access_for(action: Action) -> Access {
    match action {
        Action::Infer | Action::List => Access::Infer,
        Action::Pull | Action::SignIn | Action::Join => Access::Read,
        Action::Push => Access::Write,
        Action::Delete | Action::Maintain => Access::Maintain,
        Action::Own => Access::Own,
        Action::Inspect | Action::Administer => Access::Full,
    }
}

fn decide_server(caller: &Identity, roles: &[ServerRole]) -> Decision {
    match caller {
        Identity::Anonymous | Identity::Guest { .. } => Decision::Authenticate,
        Identity::Account(account)
            if account.scope == Scope::default()
                && account.server_role.is_some_and(|role| roles.contains(&role)) =>
        {
            Decision::Allow
        }
        _ => Decision::Deny,
    }
}

#[cfg(test)]
mod tests;
