//! Accounts and groups: creating, changing and deleting them.

use lode_client::Secret;
use lode_model::reference::Repository;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::sign_in_errors::{PublisherError, SignOnError};
use super::{Page, Registry};
use crate::Error;
use crate::auth::password::{MAX_LEN, MIN_LEN};
use crate::auth::{
    AccessTarget, Account, AccountKind, Action, Caller, Credential, Identity, OllamaKeyError, Role, STAGING,
    Scope, ServerRole, Target,
};
use crate::store::{AccountRow, AccountUpdate, MemberRow, Tx};
use crate::time::{as_rfc3339, now_ms};

/// First parts of repository names that are paths of this server, or have a meaning for it.
const RESERVED: [&str; 19] = [
    "v2", "api", "v1", "hf", "lode", "healthz", "readyz", "metrics", "static", "login", "logout", "setup",
    "device", "connect", "oauth", "models", "token", STAGING, "-",
];
const MAX_NAME_LEN: usize = 63;
/// The longest name of a token or a key.
pub(super) const MAX_LABEL_LEN: usize = 100;
/// The characters of an invalid name that its error repeats.
const MAX_SHOWN_CHARS: usize = 2 * MAX_NAME_LEN + 1;

/// The description of an account to create.
#[derive(Clone, Debug)]
pub struct NewAccount {
    pub kind: AccountKind,
    /// Of a robot: `NAMESPACE+NAME`.
    pub name: String,
    pub password: Option<Secret>,
    pub server_role: Option<ServerRole>,
}

/// A change of an account; `None` leaves a value unchanged.
#[derive(Clone, Debug, Default)]
pub struct AccountChange {
    pub password: Option<Secret>,
    pub server_role: Option<Option<ServerRole>>,
    pub is_disabled: Option<bool>,
}

/// An account as listings show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AccountInfo {
    pub id: Uuid,
    pub kind: AccountKind,
    pub name: String,
    pub server_role: Option<ServerRole>,
    pub is_disabled: bool,
    // Milliseconds since 1970; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
}

/// A group of accounts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Group {
    pub name: String,
    /// The sign-in provider that decides its members.
    pub provider: Option<String>,
    /// The provider's name for the group; absent: `name`.
    pub claim: Option<String>,
    /// Names of accounts. The next page of a list may begin with more members of the last group.
    pub members: Vec<String>,
}

/// Why accounts or grants cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error(transparent)]
    Registry(#[from] Error),
    #[error("invalid name `{name}`: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("the name `{name}` is taken")]
    NameTaken { name: String },
    #[error("no account or group is called `{name}`")]
    Unknown { name: String },
    #[error("no valid token has the id {id}")]
    TokenUnknown { id: Uuid },
    #[error("`{subject}` has no role on `{target}`")]
    GrantUnknown { subject: String, target: String },
    #[error("invalid password: expected {MIN_LEN} to {MAX_LEN} bytes, got {len}")]
    Password { len: usize },
    #[error("a robot has no password and no server role; create a token for it")]
    Robot,
    #[error("the first account must be a user with the server role `admin` and a password")]
    FirstAccount,
    #[error("this is the last administrator that can sign in")]
    LastAdmin,
    #[error("invalid name of a token or a key: expected 1 to {MAX_LABEL_LEN} characters, got {chars}")]
    Label { chars: usize },
    #[error("invalid lifetime of a token: expected a minute to ten years")]
    TokenTime,
    /// A limited token that cannot write, replacing itself.
    #[error(
        "a token that is limited to `infer` or `read` cannot replace itself; its owner rotates it with a password, a session or an unlimited token"
    )]
    TokenRotate,
    #[error(transparent)]
    Key(#[from] OllamaKeyError),
    #[error("an account has this key already")]
    KeyTaken,
    #[error("no key has the id {id}")]
    KeyUnknown { id: Uuid },
    #[error("too many patterns: expected at most {limit} for a repository or a namespace")]
    TooManyPatterns { limit: usize },
    #[error("`{text}` is not a pattern of tags, such as `v*`")]
    Pattern { text: String },
    #[error("the patterns of `{target}` were changed meanwhile")]
    PatternsChanged { target: AccessTarget },
    #[error("the code is wrong or has expired; start the sign-in again")]
    DeviceUnknown,
    #[error("`{subject}` may only get the role read")]
    OnlyRead { subject: String },
    #[error("`{target}` has no namespace to inherit from: expected `private`, `internal` or `public`")]
    NothingInherited { target: AccessTarget },
    #[error("sign in with the password of a user")]
    NotAUser,
    #[error("the setup link is wrong or has expired; restart the server for a new one")]
    SetupLink,
    /// A browser's session that began too long ago for a change of credentials or rights.
    #[error("this needs a recent sign-in; sign in again")]
    SignInAgain,
    #[error("the sign-in provider decides who is a member of `{group}`")]
    ProviderGroup { group: String },
    #[error(transparent)]
    SignOn(#[from] SignOnError),
    #[error(transparent)]
    Publisher(#[from] PublisherError),
}

impl Registry {
    /// Creates an account. A user owns the namespace of its name. The first account ends open access: it must
    /// be an administrator, and the repositories that exist become internal.
    pub async fn account_create(
        &self,
        caller: &Caller,
        new: NewAccount,
    ) -> Result<AccountInfo, AccountError> {
        self.check_recent(caller).await?;
        // 1. Check the permission and the name.
        let NewAccount { kind, name, password, server_role } = new;
        let namespace = match kind {
            AccountKind::User => {
                self.authorize(caller, Action::Administer, Target::Server).await?;
                check_name(&name, &name)?;
                namespace(&name)
            }
            AccountKind::Robot => {
                let (owner, own) = name.split_once('+').ok_or_else(|| AccountError::Name {
                    name: shorten(&name),
                    reason: "expected NAMESPACE+NAME for a robot",
                })?;
                check_name(&name, owner)?;
                check_name(&name, own)?;
                let namespace = namespace(owner);
                if let Some(namespace) = &namespace {
                    self.authorize(caller, Action::Own, Target::Settings(namespace)).await?;
                }
                if password.is_some() || server_role.is_some() {
                    return Err(AccountError::Robot);
                }
                None
            }
        };
        self.check_writable()?;
        let is_admin = server_role == Some(ServerRole::Admin) && password.is_some();
        let password = match password {
            Some(password) => Some(self.password_hash(password).await?),
            None => None,
        };
        // 2. Store it, and its namespace's grant.
        let row = AccountRow {
            id: Uuid::now_v7(),
            kind,
            name,
            password,
            server_role,
            epoch: 0,
            created_at: now_ms(),
            disabled_at: None,
            groups: Vec::new(),
        };
        let mut tx = self.store().begin().await?;
        if !tx.has_accounts().await? {
            if !is_admin {
                return Err(AccountError::FirstAccount);
            }
            tx.repositories_make_internal().await?;
        } else {
            check_signed_in(caller)?;
        }
        let detail = json!({ "server_role": row.server_role });
        self.account_store(&mut tx, caller, &row, namespace, detail).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(AccountInfo::from(row))
    }

    /// Stores a new account, and its role on the namespace of its name.
    pub(super) async fn account_store(
        &self,
        tx: &mut Tx,
        caller: &Caller,
        row: &AccountRow,
        namespace: Option<AccessTarget>,
        detail: Value,
    ) -> Result<(), AccountError> {
        if !tx.account_insert(row).await? {
            return Err(AccountError::NameTaken { name: row.name.clone() });
        }
        if let Some(namespace) = namespace {
            tx.grant_put(&namespace, row.id, Role::Own).await?;
        }
        self.audit(tx, caller, "account.create", subject(row), detail).await?;
        tracing::info!(account = row.name, "account created");
        Ok(())
    }

    /// Accounts by name, after `after`, at most `n`; the robots of a namespace if it is given, for its owners.
    pub async fn account_list(
        &self,
        caller: &Caller,
        of: Option<&str>,
        after: Option<&str>,
        n: u32,
    ) -> Result<Page<AccountInfo>, AccountError> {
        let owned = match of {
            Some(name) => {
                Some(namespace(name).ok_or_else(|| AccountError::Unknown { name: name.to_owned() })?)
            }
            None => None,
        };
        match &owned {
            Some(space) => self.authorize_owner(caller, space).await?,
            None => self.authorize(caller, Action::Inspect, Target::Server).await?,
        }
        let prefix = of.map(|name| format!("{name}+")).unwrap_or_default();
        self.accounts_from(&prefix, after, n).await
    }

    /// Accounts whose names begin with `prefix`, by name, after `after`, at most `n`.
    pub(crate) async fn account_search(
        &self,
        caller: &Caller,
        prefix: &str,
        after: Option<&str>,
        n: u32,
    ) -> Result<Page<AccountInfo>, AccountError> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        self.accounts_from(prefix, after, n).await
    }

    async fn accounts_from(
        &self,
        prefix: &str,
        after: Option<&str>,
        n: u32,
    ) -> Result<Page<AccountInfo>, AccountError> {
        let rows = self.store().account_list(prefix, after.unwrap_or_default(), i64::from(n) + 1).await?;
        Ok(Page::cut(rows.into_iter().map(AccountInfo::from).collect(), n))
    }

    /// A robot, for those who manage its credentials.
    pub(crate) async fn robot_show(&self, caller: &Caller, name: &str) -> Result<AccountInfo, AccountError> {
        self.robot_of(caller, Some(name)).await.map(AccountInfo::from)
    }

    /// Changes an account. Its sessions and access tokens end; its tokens end if it is disabled.
    pub async fn account_update(
        &self,
        caller: &Caller,
        name: &str,
        change: AccountChange,
    ) -> Result<AccountInfo, AccountError> {
        self.check_recent(caller).await?;
        self.authorize(caller, Action::Administer, Target::Server).await?;
        self.account_change(caller, name, change).await
    }

    async fn account_change(
        &self,
        caller: &Caller,
        name: &str,
        change: AccountChange,
    ) -> Result<AccountInfo, AccountError> {
        self.check_writable()?;
        let row = self.account_row(caller, name).await?;
        if row.kind == AccountKind::Robot && (change.password.is_some() || change.server_role.is_some()) {
            return Err(AccountError::Robot);
        }
        let AccountChange { password, server_role, is_disabled } = change;
        let detail = json!({
            "password": password.is_some(), "server_role": server_role, "disabled": is_disabled,
        });
        let password = match password {
            Some(password) => Some(self.password_hash(password).await?),
            None => None,
        };
        let update = AccountUpdate { password, server_role, is_disabled };
        let unknown = || AccountError::Unknown { name: name.to_owned() };
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        if !tx.account_update(row.id, &update).await? {
            return Err(unknown());
        }
        tx.sessions_delete(row.id, None).await?;
        if !tx.has_admin().await? {
            return Err(AccountError::LastAdmin);
        }
        self.audit(&mut tx, caller, "account.change", subject(&row), detail).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(account = name, "account changed");
        self.store().account_find(row.id).await?.map(AccountInfo::from).ok_or_else(unknown)
    }

    /// Whether the caller's account can sign in with a password.
    pub(crate) async fn has_password(&self, caller: &Caller) -> Result<bool, Error> {
        let account = caller.account().ok_or(Error::Unauthorized)?;
        Ok(self.account_live(account.id).await?.is_some_and(|row| row.password.is_some()))
    }

    /// Changes the caller's own password. The current one is needed, so that a stolen token or session cannot
    /// lock the owner out.
    pub async fn password_change(
        &self,
        caller: &Caller,
        current: &Secret,
        new: Secret,
    ) -> Result<AccountInfo, AccountError> {
        let account = caller.account().ok_or(Error::Unauthorized)?;
        if !is_full(account) {
            return Err(limited_credential().into());
        }
        let checked = self.sign_in_basic(caller, &account.name, current, None).await?;
        if !matches!(checked, Identity::Account(checked) if checked.credential == Credential::Password) {
            return Err(AccountError::NotAUser);
        }
        let change = AccountChange { password: Some(new), ..AccountChange::default() };
        self.account_change(caller, &account.name, change).await
    }

    /// Deletes an account with its tokens and grants, and the robots of its namespace. Its repositories stay.
    pub async fn account_delete(&self, caller: &Caller, name: &str) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        let row = match name.split_once('+') {
            Some((owner, _)) => match namespace(owner) {
                Some(namespace) => {
                    self.authorize(caller, Action::Own, Target::Settings(&namespace)).await?;
                    self.account_row(caller, name).await?
                }
                None => return Err(AccountError::Unknown { name: name.to_owned() }),
            },
            None => {
                self.authorize(caller, Action::Administer, Target::Server).await?;
                self.account_row(caller, name).await?
            }
        };
        self.check_writable()?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.account_delete(&row).await?;
        if !tx.has_admin().await? {
            return Err(AccountError::LastAdmin);
        }
        self.audit(&mut tx, caller, "account.delete", subject(&row), Value::Null).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(account = name, "account deleted");
        Ok(())
    }

    /// Creates a group. The sign-in `provider` decides its members, if there is one; `claim` is its name for
    /// the group, by default `name`.
    pub async fn group_create(
        &self,
        caller: &Caller,
        name: &str,
        provider: Option<&str>,
        claim: Option<&str>,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        self.authorize(caller, Action::Administer, Target::Server).await?;
        self.check_writable()?;
        check_name(name, name)?;
        if let Some(provider) = provider
            && !self.config.oidc.iter().any(|known| known.name == provider)
        {
            return Err(SignOnError::ProviderUnknown { name: provider.to_owned() }.into());
        }
        let mut tx = self.store().begin().await?;
        if !tx.has_accounts().await? {
            return Err(AccountError::FirstAccount);
        }
        check_signed_in(caller)?;
        if !tx.group_insert(Uuid::now_v7(), name, provider, claim).await? {
            return Err(AccountError::NameTaken { name: name.to_owned() });
        }
        let detail = json!({ "provider": provider, "claim": claim });
        self.audit(&mut tx, caller, "group.create", format!("group:{name}"), detail).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Deletes a group with its grants.
    pub async fn group_delete(&self, caller: &Caller, name: &str) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        self.authorize(caller, Action::Administer, Target::Server).await?;
        self.check_writable()?;
        let id = self.group_id(caller, name).await?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.group_delete(id).await?;
        self.audit(&mut tx, caller, "group.delete", format!("group:{name}"), Value::Null).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(())
    }

    /// Adds an account to a group, or removes it.
    pub async fn group_member_put(
        &self,
        caller: &Caller,
        group: &str,
        account: &str,
        is_member: bool,
    ) -> Result<(), AccountError> {
        self.check_recent(caller).await?;
        self.authorize(caller, Action::Administer, Target::Server).await?;
        self.check_writable()?;
        let (id, member) = (self.group_id(caller, group).await?, self.account_row(caller, account).await?.id);
        // The provider adds members; an administrator may remove one until the next sign-in there.
        if is_member && self.store().group_has_provider(id).await? {
            return Err(AccountError::ProviderGroup { group: group.to_owned() });
        }
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.group_member_put(id, member, is_member).await?;
        let action = if is_member { "group.join" } else { "group.leave" };
        self.audit(&mut tx, caller, action, format!("group:{group}"), json!({ "account": account })).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(())
    }

    /// Groups with their members after the names of a group and of a member, in their order, at most `n` members. A
    /// group without members counts as one, and the members of the last group may continue on the next page.
    pub(crate) async fn group_page(
        &self,
        caller: &Caller,
        after: (&str, &str),
        n: u32,
    ) -> Result<Page<Group>, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let rows = Page::cut(self.store().member_list(after, i64::from(n) + 1).await?, n);
        let mut groups: Vec<Group> = Vec::new();
        for MemberRow { name, provider, claim, member } in rows.items {
            match groups.last_mut().filter(|last| last.name == name) {
                Some(last) => last.members.extend(member),
                None => groups.push(Group { name, provider, claim, members: Vec::from_iter(member) }),
            }
        }
        Ok(Page { items: groups, more: rows.more })
    }

    pub(super) async fn password_hash(&self, password: Secret) -> Result<Secret, AccountError> {
        let len = password.expose().len();
        if !(MIN_LEN..=MAX_LEN).contains(&len) {
            return Err(AccountError::Password { len });
        }
        Ok(self.sign_ins.hashing.hash(password).await?)
    }

    pub(super) async fn account_row(&self, caller: &Caller, name: &str) -> Result<AccountRow, AccountError> {
        let row = self.store().account_find_by_name(name).await?;
        if row.is_some() {
            check_signed_in(caller)?;
        }
        row.ok_or_else(|| AccountError::Unknown { name: name.to_owned() })
    }

    pub(super) async fn group_id(&self, caller: &Caller, name: &str) -> Result<Uuid, AccountError> {
        let id = self.store().group_find(name).await?;
        if id.is_some() {
            check_signed_in(caller)?;
        }
        id.ok_or_else(|| AccountError::Unknown { name: name.to_owned() })
    }

    /// The id of an account, or of a group.
    pub(super) async fn subject_id(&self, caller: &Caller, name: &str) -> Result<Uuid, AccountError> {
        match self.store().account_find_by_name(name).await? {
            Some(row) => check_signed_in(caller).map(|()| row.id).map_err(AccountError::from),
            None => self.group_id(caller, name).await,
        }
    }
}

/// Returns an error for a client without an account. Checked where accounts or groups are found: then the server is
/// not open, although this replica may have read half a second ago that it is.
fn check_signed_in(caller: &Caller) -> Result<(), Error> {
    if caller.is_internal() || caller.account().is_some() { Ok(()) } else { Err(Error::Unauthorized) }
}

/// Whether the account's credential is not limited.
pub(super) fn is_full(account: &Account) -> bool {
    account.scope == Scope::default()
}

/// The error of a limited credential that would manage credentials.
pub(super) fn limited_credential() -> Error {
    let needs = "a token or key with limited rights cannot manage credentials; use the password, or sign in on the \
                 web page";
    Error::Denied { needs: needs.to_owned() }
}

/// The subject of a record about an account.
pub(super) fn subject(row: &AccountRow) -> String {
    format!("{}:{}", row.kind.as_str(), row.name)
}

/// Whether new repositories of this name are refused.
pub(super) fn is_reserved(repository: &Repository) -> bool {
    let first = repository.as_str().split('/').next().unwrap_or_default();
    RESERVED.contains(&first)
}

pub(super) fn namespace(name: &str) -> Option<AccessTarget> {
    name.parse().ok().map(AccessTarget::Namespace)
}

/// Whether an account may have this name, as far as its characters go.
pub(super) fn is_account_name(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-+".contains(&byte);
    (1..=2 * MAX_NAME_LEN + 1).contains(&name.len()) && name.bytes().all(is_known)
}

/// The beginning of an invalid name, for an error.
fn shorten(name: &str) -> String {
    name.chars().take(MAX_SHOWN_CHARS).collect()
}

/// Checks a part of an account's name. It is also a namespace, so it has the same characters.
pub(super) fn check_name(name: &str, part: &str) -> Result<(), AccountError> {
    let wrong = |reason| Err(AccountError::Name { name: shorten(name), reason });
    if part.is_empty() || part.len() > MAX_NAME_LEN {
        return wrong("expected 1 to 63 characters");
    }
    if part.contains('/') || namespace(part).is_none() {
        return wrong("expected lower-case letters and digits, with `.`, `_` or `-` in between");
    }
    if RESERVED.contains(&part) || ["everyone", "anyone"].contains(&part) {
        return wrong("it is reserved");
    }
    Ok(())
}

impl From<AccountRow> for AccountInfo {
    fn from(row: AccountRow) -> AccountInfo {
        AccountInfo {
            id: row.id,
            kind: row.kind,
            name: row.name,
            server_role: row.server_role,
            is_disabled: row.disabled_at.is_some(),
            created_at: row.created_at,
        }
    }
}
