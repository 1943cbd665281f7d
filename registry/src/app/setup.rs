//! Setup mode: a new server that other machines can reach, and that has no account, does nothing but wait for its
//! administrator, who opens a link that the server has printed.

use lode_client::Secret;

use super::sessions::random_text;
use super::{AccountError, NewAccount, Registry};
use crate::Error;
use crate::auth::{AccountKind, Caller, ServerRole};

impl Registry {
    /// Starts the setup mode; returns the path of the setup page.
    pub fn setup_begin(&self) -> Result<String, Error> {
        let token = random_text::<32>()?;
        let path = format!("/setup?token={token}");
        self.setup.begin(Secret::new(token));
        Ok(path)
    }

    /// Whether this server waits for its first account. Another replica may create it.
    pub(crate) async fn is_in_setup(&self) -> Result<bool, Error> {
        if !self.setup.is_waiting() {
            return Ok(false);
        }
        if self.is_open().await? {
            return Ok(true);
        }
        self.setup.end();
        Ok(false)
    }

    /// Returns an error unless this is the token of a valid link.
    pub(crate) async fn setup_check(&self, token: &str) -> Result<(), AccountError> {
        match self.is_in_setup().await? && self.setup.accepts(token) {
            true => Ok(()),
            false => Err(AccountError::SetupLink),
        }
    }

    /// Creates the first administrator, and signs it in; returns the value of the session's cookie.
    pub(crate) async fn setup(
        &self,
        client: &Caller,
        token: &str,
        name: &str,
        password: Secret,
    ) -> Result<Secret, AccountError> {
        self.setup_check(token).await?;
        let new = NewAccount {
            kind: AccountKind::User,
            name: name.to_owned(),
            password: Some(password.clone()),
            server_role: Some(ServerRole::Admin),
        };
        self.account_create(client, new).await?;
        self.session_open(client, name, &password).await
    }

    /// Whether the server has content already.
    pub(crate) async fn has_repositories(&self) -> Result<bool, Error> {
        Ok(!self.store().repository_list(&crate::store::ListFilter::All, "", 1).await?.is_empty())
    }
}
