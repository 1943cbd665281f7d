//! Sessions of browsers: a sign-in creates one, and its cookie is the only secret.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac;
use lode_client::Secret;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Registry;
use super::accounts::{AccountError, subject};
use super::sign_in::account_of;
use crate::Error;
use crate::auth::token::digest_of;
use crate::auth::{Account, AccountKind, Caller, Credential, Identity, Scope};
use crate::store::{AccountRow, SessionRow};
use crate::time::{millis, now_ms};

/// How long after a sign-in a session may change credentials and rights.
const RECENT_SIGN_IN_AGE: Duration = Duration::from_secs(15 * 60);
/// The random bytes of a cookie.
const COOKIE_BYTES: usize = 32;

/// A session as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionInfo {
    pub(crate) id: Uuid,
    pub(crate) address: String,
    /// The browser's `User-Agent`.
    pub(crate) agent: String,
    /// Milliseconds since 1970.
    pub(crate) created_at: i64,
    pub(crate) used_at: i64,
}

impl Registry {
    /// Signs a user in with its password; returns the value of the session's cookie. A token in the password's
    /// place is refused: a session would have more rights.
    pub(crate) async fn session_open(
        &self,
        client: &Caller,
        name: &str,
        password: &Secret,
    ) -> Result<Secret, AccountError> {
        let signed_in = self.sign_in_basic(client, name, password, None).await?;
        let account = match &signed_in {
            Identity::Account(account)
                if account.credential == Credential::Password && account.kind == AccountKind::User =>
            {
                account
            }
            _ => return Err(AccountError::NotAUser),
        };
        let row = self.account_live(account.id).await?.filter(|row| row.epoch == account.epoch);
        let row = row.ok_or(Error::CredentialsInvalid { is_token: false })?;
        self.session_create(client, &row, None, now_ms()).await
    }

    /// Creates a session; returns the value of its cookie. `provider`: where the person has signed in. `fresh_at`:
    /// when the person has proved who it is, there or here.
    pub(super) async fn session_create(
        &self,
        client: &Caller,
        row: &AccountRow,
        provider: Option<&str>,
        fresh_at: i64,
    ) -> Result<Secret, AccountError> {
        self.check_writable()?;
        let cookie = Secret::new(random_text::<COOKIE_BYTES>()?);
        let (now, origin) = (now_ms(), client.origin.as_deref());
        let session = SessionRow {
            id: Uuid::now_v7(),
            account: row.id,
            address: origin
                .and_then(|origin| origin.address)
                .map(|address| address.to_string())
                .unwrap_or_default(),
            agent: origin.and_then(|origin| origin.agent.clone()).unwrap_or_default(),
            provider: provider.map(str::to_owned),
            created_at: now,
            used_at: now,
            fresh_at,
        };
        let account = account_of(row, Credential::Session(session.id), Scope::default());
        let caller = client.with_identity(Identity::Account(account.into()));
        let mut tx = self.store().begin().await?;
        if !tx.session_insert(&session, &digest_of(cookie.expose()), row.epoch).await? {
            return Err(Error::CredentialsInvalid { is_token: false }.into());
        }
        let detail = json!({ "id": session.id, "provider": provider });
        self.audit(&mut tx, &caller, "session.create", subject(row), detail).await?;
        tx.commit().await?;
        Ok(cookie)
    }

    /// Returns an error for a session whose person has signed in too long ago to change credentials or rights:
    /// a person who takes over a browser or its cookie should not get more than that session.
    pub(super) async fn check_recent(&self, caller: &Caller) -> Result<(), AccountError> {
        let Some((_, id)) = session_of(caller) else { return Ok(()) };
        let fresh_at = self.store().session_fresh_at(id).await?.unwrap_or_default();
        match now_ms().saturating_sub(fresh_at) <= millis(RECENT_SIGN_IN_AGE) {
            true => Ok(()),
            false => Err(AccountError::SignInAgain),
        }
    }

    /// Ends the caller's session; returns the provider at which the person has signed in.
    pub(crate) async fn session_end(&self, caller: &Caller) -> Result<Option<String>, Error> {
        let Some((account, id)) = session_of(caller) else { return Ok(None) };
        let rows = self.store().session_list(account.id).await?;
        self.sessions_end(caller, account, Some(id)).await?;
        Ok(rows.into_iter().find(|row| row.id == id).and_then(|row| row.provider))
    }

    /// Ends all sessions of the caller's account, and its access tokens. Its tokens and keys stay.
    pub(crate) async fn sessions_end_all(&self, caller: &Caller) -> Result<(), Error> {
        let Some((account, _)) = session_of(caller) else { return Ok(()) };
        self.sessions_end(caller, account, None).await
    }

    async fn sessions_end(&self, caller: &Caller, account: &Account, id: Option<Uuid>) -> Result<(), Error> {
        self.check_writable()?;
        let mut tx = self.store().begin().await?;
        tx.access_changed().await?;
        tx.sessions_delete(account.id, id).await?;
        if id.is_none() {
            tx.account_epoch_raise(account.id).await?;
        }
        let action = if id.is_some() { "session.end" } else { "session.end_all" };
        self.audit(&mut tx, caller, action, caller.actor(), Value::Null).await?;
        tx.commit().await?;
        self.access.changed();
        Ok(())
    }

    /// The sessions of the caller's account, newest first.
    pub(crate) async fn session_list(&self, caller: &Caller) -> Result<Vec<SessionInfo>, Error> {
        let account = caller.account().ok_or(Error::Unauthorized)?;
        let rows = self.store().session_list(account.id).await?;
        let info = |SessionRow { id, address, agent, created_at, used_at, .. }| SessionInfo {
            id,
            address,
            agent,
            created_at,
            used_at,
        };
        Ok(rows.into_iter().map(info).collect())
    }

    /// The token that forms of this session carry, so that other sites cannot send them.
    pub(crate) async fn csrf_token(&self, caller: &Caller) -> Result<Option<Secret>, Error> {
        let Some((_, id)) = session_of(caller) else { return Ok(None) };
        let mac = self.access_token_mac(format!("csrf\n{id}").as_bytes()).await?.finalize().into_bytes();
        Ok(Some(Secret::new(URL_SAFE_NO_PAD.encode(mac))))
    }
}

/// The account and the session of a browser.
fn session_of(caller: &Caller) -> Option<(&Account, Uuid)> {
    let account = caller.account()?;
    match account.credential {
        Credential::Session(id) => Some((account, id)),
        _ => None,
    }
}

/// Random bytes as text.
pub(super) fn random_text<const N: usize>() -> Result<String, Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::io("random bytes", std::io::Error::other(error)))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
