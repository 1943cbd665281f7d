//! Tokens of accounts, and their ollama keys: creating, listing and revoking them.

use std::time::Duration;

use lode_client::Secret;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;
use uuid::Uuid;

use super::accounts::{AccountError, MAX_LABEL_LEN, is_full, limited_credential, namespace, subject};
use super::sign_in::scope_of;
use super::{Page, Registry};
use crate::Error;
use crate::auth::token::{digest_of, new_token};
use crate::auth::{Access, Action, Caller, Credential, OllamaKey, Scope, Target};
use crate::store::{AccountRow, OllamaKeyRow, TokenRow};
use crate::time::{as_rfc3339, as_rfc3339_option, millis, now_ms};

/// How long a token is valid by default, and at most.
const TOKEN_TIME: Duration = Duration::from_secs(90 * 24 * 3600);
const MIN_TOKEN_TIME: Duration = Duration::from_secs(60);
const MAX_TOKEN_TIME: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// The description of a token to create.
#[derive(Clone, Debug, Default)]
pub struct NewToken {
    /// What it is for.
    pub name: String,
    pub scope: Scope,
    /// How long it is valid; 90 days by default.
    pub valid: Option<Duration>,
}

/// A token as listings show it. Its secret is shown once, when it is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenInfo {
    pub id: Uuid,
    pub name: String,
    /// The last four characters of its secret.
    pub last_four: String,
    pub scope: Scope,
    // Milliseconds since 1970, like all times here; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    #[serde(serialize_with = "as_rfc3339_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<i64>,
    #[serde(serialize_with = "as_rfc3339_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<i64>,
    #[serde(serialize_with = "as_rfc3339_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub revoked_at: Option<i64>,
}

/// A token on a page.
pub(crate) struct ListedToken {
    pub(crate) info: TokenInfo,
    /// Whether a CI job got it, from a publisher. Such a token is not replaced.
    pub(crate) is_of_job: bool,
}

/// A key of ollama as listings show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct KeyInfo {
    pub id: Uuid,
    pub name: String,
    /// As `ssh-keygen -l` prints it.
    pub fingerprint: String,
    // Milliseconds since 1970, like all times here; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    #[serde(serialize_with = "as_rfc3339_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub used_at: Option<i64>,
}

/// Checks the name of a token or a key.
fn check_label(name: &str) -> Result<(), AccountError> {
    match name.chars().count() {
        1..=MAX_LABEL_LEN => Ok(()),
        chars => Err(AccountError::Label { chars }),
    }
}

impl Registry {
    /// Creates a token of the caller's account, or of `owner`. Returns its secret, which is not stored.
    pub async fn token_create(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        new: NewToken,
    ) -> Result<(TokenInfo, Secret), AccountError> {
        self.check_recent(caller).await?;
        let owner = self.credential_owner(caller, owner).await?;
        self.check_writable()?;
        check_label(&new.name)?;
        if !(MIN_TOKEN_TIME..=MAX_TOKEN_TIME).contains(&new.valid.unwrap_or(TOKEN_TIME)) {
            return Err(AccountError::TokenTime);
        }
        let scope = new.scope.clone();
        let (row, secret) = token_row(&owner, new)?;
        let mut tx = self.store().begin().await?;
        tx.token_insert(&row, &digest_of(secret.expose())).await?;
        let detail = json!({ "id": row.id, "name": row.name, "scope": scope });
        self.audit(&mut tx, caller, "token.create", subject(&owner), detail).await?;
        tx.commit().await?;
        tracing::info!(account = owner.name, token = %row.id, "token created");
        Ok((TokenInfo::try_from(row)?, secret))
    }

    /// The tokens of the caller's account, or of `owner`, newest first: at most `n` of those that are older than
    /// `before`.
    pub(crate) async fn token_page(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        before: Option<Uuid>,
        n: u32,
    ) -> Result<Page<ListedToken>, AccountError> {
        let owner = self.credential_owner(caller, owner).await?;
        let rows = self.store().token_list(owner.id, before, i64::from(n) + 1).await?;
        let listed = |row: TokenRow| {
            Ok(ListedToken { is_of_job: row.publisher.is_some(), info: TokenInfo::try_from(row)? })
        };
        Ok(Page::cut(rows.into_iter().map(listed).collect::<Result<_, Error>>()?, n))
    }

    /// Revokes a token of the caller's account, or of `owner`. A limited token may revoke itself.
    pub async fn token_revoke(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        id: Uuid,
    ) -> Result<(), AccountError> {
        let owner = self.token_owner(caller, owner, id).await?;
        self.check_writable()?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        if !tx.token_revoke(owner.id, id).await? {
            return Err(AccountError::TokenUnknown { id });
        }
        self.audit(&mut tx, caller, "token.revoke", subject(&owner), json!({ "id": id })).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(account = owner.name, token = %id, "token revoked");
        Ok(())
    }

    /// Replaces a token by a new one with the same name and limits. The old one ends at once. The new one is valid
    /// as long as the old one was at first. A limited token that may write may replace itself, and the new one then
    /// expires with the old one: otherwise a token that was given away would never expire.
    pub async fn token_rotate(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        id: Uuid,
    ) -> Result<(TokenInfo, Secret), AccountError> {
        self.check_recent(caller).await?;
        let owner = self.token_owner(caller, owner, id).await?;
        self.check_writable()?;
        let limits =
            caller.account().map(|account| &account.scope).filter(|scope| **scope != Scope::default());
        // Tokens that only read are given to many programs: one of them must not lock out the others.
        if limits.is_some_and(|scope| scope.access < Access::Write) {
            return Err(AccountError::TokenRotate);
        }
        let is_it = |row: &TokenRow| row.account == owner.id && row.publisher.is_none();
        let old = self.store().token_find_by_id(id).await?.filter(is_it);
        let old = old.ok_or(AccountError::TokenUnknown { id })?;
        let scope = scope_of(&old)?;
        let valid = old.expires_at.map(|at| Duration::from_millis((at - old.created_at).unsigned_abs()));
        let (mut row, secret) = token_row(&owner, NewToken { name: old.name, scope, valid })?;
        if limits.is_some() && old.expires_at.is_some() {
            row.expires_at = old.expires_at;
        }
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        if !tx.token_revoke(owner.id, id).await? {
            return Err(AccountError::TokenUnknown { id });
        }
        tx.token_insert(&row, &digest_of(secret.expose())).await?;
        let detail = json!({ "id": row.id, "replaces": id, "name": row.name });
        self.audit(&mut tx, caller, "token.rotate", subject(&owner), detail).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(account = owner.name, token = %row.id, replaces = %id, "token rotated");
        Ok((TokenInfo::try_from(row)?, secret))
    }

    /// Adds a key of ollama to the caller's account, or to that of `owner`.
    pub async fn key_add(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        key: OllamaKey,
        name: &str,
    ) -> Result<KeyInfo, AccountError> {
        self.check_recent(caller).await?;
        let owner = self.credential_owner(caller, owner).await?;
        self.check_writable()?;
        check_label(name)?;
        let row = OllamaKeyRow {
            id: Uuid::now_v7(),
            account: owner.id,
            public_key: key.to_hex(),
            name: name.to_owned(),
            created_at: now_ms(),
            used_at: None,
        };
        let mut tx = self.store().begin().await?;
        // A replica may remember that no account has it.
        tx.access_changed().await?;
        if !tx.ollama_key_insert(&row).await? {
            return Err(AccountError::KeyTaken);
        }
        let detail = json!({ "id": row.id, "name": name, "fingerprint": key.fingerprint() });
        self.audit(&mut tx, caller, "key.add", subject(&owner), detail).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(account = owner.name, key = key.fingerprint(), "ollama key added");
        KeyInfo::try_from(row).map_err(AccountError::from)
    }

    /// The keys of the caller's account, or of `owner`, newest first: at most `n` of those that are older than
    /// `before`.
    pub(crate) async fn key_page(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        before: Option<Uuid>,
        n: u32,
    ) -> Result<Page<KeyInfo>, AccountError> {
        let owner = self.credential_owner(caller, owner).await?;
        let rows = self.store().ollama_key_list(owner.id, before, i64::from(n) + 1).await?;
        Ok(Page::cut(rows.into_iter().map(KeyInfo::try_from).collect::<Result<_, _>>()?, n))
    }

    /// Removes a key of the caller's account, or of `owner`.
    pub async fn key_remove(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        id: Uuid,
    ) -> Result<(), AccountError> {
        let owner = self.credential_owner(caller, owner).await?;
        self.check_writable()?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        if !tx.ollama_key_delete(owner.id, id).await? {
            return Err(AccountError::KeyUnknown { id });
        }
        self.audit(&mut tx, caller, "key.remove", subject(&owner), json!({ "id": id })).await?;
        tx.commit().await?;
        self.access.changed();
        tracing::info!(account = owner.name, key = %id, "ollama key removed");
        Ok(())
    }

    /// Removes the key with which the caller has signed in.
    pub(crate) async fn key_forget(&self, caller: &Caller) -> Result<(), Error> {
        let Some(account) = caller.account() else { return Ok(()) };
        let Credential::Key(id) = account.credential else { return Ok(()) };
        self.check_writable()?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.ollama_key_delete(account.id, id).await?;
        self.audit(&mut tx, caller, "key.remove", caller.actor(), json!({ "id": id })).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(())
    }

    /// The account whose token the caller may end: its own token, or one of an account whose credentials it
    /// manages. An access token is narrower than the token behind it, so it does not count as that one.
    async fn token_owner(
        &self,
        caller: &Caller,
        owner: Option<&str>,
        id: Uuid,
    ) -> Result<AccountRow, AccountError> {
        match caller.account() {
            Some(account)
                if account.credential == Credential::Token(id) && account.scope.requested.is_none() =>
            {
                self.account_row(caller, &account.name).await
            }
            _ => self.credential_owner(caller, owner).await,
        }
    }

    /// The account whose credentials the caller manages: its own, a robot's of a namespace that it owns, or any as an
    /// administrator. A limited credential manages none.
    pub(super) async fn credential_owner(
        &self,
        caller: &Caller,
        owner: Option<&str>,
    ) -> Result<AccountRow, AccountError> {
        self.authorize(caller, Action::SignIn, Target::Server).await?;
        let own = match caller.account() {
            Some(account) if is_full(account) => Some(&account.name[..]),
            Some(_) => return Err(limited_credential().into()),
            None => None,
        };
        let name = owner.or(own).ok_or(Error::Unauthorized)?;
        if own != Some(name) {
            match name.split_once('+').and_then(|(owner, _)| namespace(owner)) {
                Some(namespace) => self.authorize(caller, Action::Own, Target::Settings(&namespace)).await?,
                None => self.authorize(caller, Action::Administer, Target::Server).await?,
            }
        }
        self.account_row(caller, name).await
    }
}

/// A new token of an account, and its secret.
pub(super) fn token_row(owner: &AccountRow, new: NewToken) -> Result<(TokenRow, Secret), Error> {
    let (secret, now) = (new_token()?, now_ms());
    let text = secret.expose();
    let row = TokenRow {
        id: Uuid::now_v7(),
        account: owner.id,
        name: new.name,
        last_four: text[text.len() - 4..].to_owned(),
        scope: serde_json::to_string(&new.scope).expect("names serialise to JSON"),
        created_at: now,
        expires_at: Some(now + millis(new.valid.unwrap_or(TOKEN_TIME))),
        used_at: None,
        revoked_at: None,
        publisher: None,
    };
    Ok((row, secret))
}

impl TryFrom<OllamaKeyRow> for KeyInfo {
    type Error = Error;

    fn try_from(row: OllamaKeyRow) -> Result<KeyInfo, Error> {
        let OllamaKeyRow { id, name, public_key, created_at, used_at, .. } = row;
        match OllamaKey::from_hex(&public_key) {
            Some(key) => Ok(KeyInfo { id, name, fingerprint: key.fingerprint(), created_at, used_at }),
            None => Err(Error::Corrupt { what: "ollama key", value: public_key }),
        }
    }
}

impl TryFrom<TokenRow> for TokenInfo {
    type Error = Error;

    fn try_from(row: TokenRow) -> Result<TokenInfo, Error> {
        Ok(TokenInfo {
            id: row.id,
            scope: scope_of(&row)?,
            name: row.name,
            last_four: row.last_four,
            created_at: row.created_at,
            expires_at: row.expires_at,
            used_at: row.used_at,
            revoked_at: row.revoked_at,
        })
    }
}
