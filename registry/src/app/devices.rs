//! Signing in on a device without a browser (RFC 8628): the program shows a code, a person allows it on a page
//! of this server, and the program gets a token.

use std::time::Duration;

use lode_client::Secret;
use serde_json::Value;
use uuid::Uuid;

use super::accounts::{AccountError, is_full, limited_credential, subject};
use super::sessions::random_text;
use super::sign_in::account_of;
use super::tokens::{NewToken, token_row};
use super::{Registry, TokenInfo};
use crate::Error;
use crate::auth::token::digest_of;
use crate::auth::{Access, Caller, Credential, Identity, Scope};
use crate::network::network;
use crate::store::{DeviceRow, DeviceState};
use crate::time::{millis, now_ms};

/// How long a code is valid.
pub(crate) const DEVICE_TIME: Duration = Duration::from_secs(15 * 60);
/// How long a program waits between two requests.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How many programs may wait, in all and from one network.
const MAX_WAITING: i64 = 10_000;
const MAX_WAITING_HERE: i64 = 20;
const MAX_CLIENT_LEN: usize = 60;
/// Characters of codes: no vowels, so that no words appear.
const LETTERS: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
const CODE_LEN: usize = 8;

/// A sign-in that waits for a person.
#[derive(Clone, Debug)]
pub(crate) struct DeviceStart {
    /// The program's secret.
    pub(crate) device_code: Secret,
    /// What the person enters: `BCDF-GHJK`.
    pub(crate) user_code: String,
}

/// A sign-in as the person sees it before deciding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRequest {
    pub(crate) user_code: String,
    /// The program's name for itself.
    pub(crate) client: String,
    /// The network that the request came from.
    pub(crate) address: String,
    /// What the program may do.
    pub(crate) access: Access,
}

/// The state of a sign-in, as the program learns it.
#[derive(Debug)]
pub(crate) enum DevicePoll {
    Pending,
    /// The program asks too often.
    TooFast,
    Denied,
    /// The code is unknown, or has expired.
    Expired,
    Allowed(Box<TokenInfo>, Secret),
}

impl Registry {
    /// Starts a sign-in. `name`: the program's name for itself.
    pub(crate) async fn device_begin(
        &self,
        client: &Caller,
        name: &str,
        access: Access,
    ) -> Result<DeviceStart, Error> {
        self.check_writable()?;
        let address = client.origin.as_ref().and_then(|origin| origin.address);
        let address = address.map(|address| network(address).to_string()).unwrap_or_default();
        let (total, here) = self.store().device_count(&address).await?;
        if total >= MAX_WAITING || here >= MAX_WAITING_HERE {
            return Err(Error::Throttled { seconds: 60 });
        }
        let device_code = Secret::new(random_text::<32>()?);
        loop {
            let row = DeviceRow {
                device_code: digest_of(device_code.expose()),
                user_code: new_user_code()?,
                client: name.chars().filter(|c| !c.is_control()).take(MAX_CLIENT_LEN).collect(),
                access,
                address: address.clone(),
                created_at: now_ms(),
                polled_at: 0,
                account: None,
                state: DeviceState::Pending,
            };
            if self.store().device_insert(&row).await? {
                return Ok(DeviceStart { device_code, user_code: row.user_code });
            }
        }
    }

    /// The sign-in with this code, which the caller may allow.
    pub(crate) async fn device_show(
        &self,
        caller: &Caller,
        user_code: &str,
    ) -> Result<DeviceRequest, AccountError> {
        let row = self.device_row(caller, user_code).await?;
        let DeviceRow { user_code, client, address, access, .. } = row;
        Ok(DeviceRequest { user_code, client, address, access })
    }

    /// Allows or denies a sign-in.
    pub(crate) async fn device_decide(
        &self,
        caller: &Caller,
        user_code: &str,
        is_allowed: bool,
    ) -> Result<(), AccountError> {
        if is_allowed {
            self.check_recent(caller).await?;
        }
        let row = self.device_row(caller, user_code).await?;
        self.check_writable()?;
        let account = caller.account().ok_or(Error::Unauthorized)?;
        let mut tx = self.store().begin().await?;
        if !tx.device_decide(&row.device_code, account.id, is_allowed).await? {
            return Err(AccountError::DeviceUnknown);
        }
        let action = if is_allowed { "device.allow" } else { "device.deny" };
        let detail = serde_json::json!({ "client": row.client, "address": row.address });
        self.audit(&mut tx, caller, action, caller.actor(), detail).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn device_row(&self, caller: &Caller, user_code: &str) -> Result<DeviceRow, AccountError> {
        let account = caller.account().ok_or(Error::Unauthorized)?;
        if !is_full(account) {
            return Err(limited_credential().into());
        }
        let row = self.store().device_find_by_user(&canonical(user_code)).await?;
        row.filter(|row| row.state == DeviceState::Pending && !is_over(row))
            .ok_or(AccountError::DeviceUnknown)
    }

    /// The state of a sign-in. Once it is allowed, the first request gets the token.
    pub(crate) async fn device_poll(&self, client: &Caller, device_code: &str) -> Result<DevicePoll, Error> {
        self.check_writable()?;
        let found = self.store().device_find(&digest_of(device_code)).await?;
        let Some(row) = found.filter(|row| !is_over(row)) else { return Ok(DevicePoll::Expired) };
        match (row.state, row.account) {
            (DeviceState::Denied, _) => Ok(DevicePoll::Denied),
            (DeviceState::Allowed, Some(account)) => self.device_finish(client, &row, account).await,
            _ => {
                let now = now_ms();
                self.store().device_polled(&row.device_code, now).await?;
                // A second of tolerance for the network.
                let is_early = now - row.polled_at < millis(POLL_INTERVAL) - 1000;
                Ok(if is_early { DevicePoll::TooFast } else { DevicePoll::Pending })
            }
        }
    }

    async fn device_finish(
        &self,
        client: &Caller,
        row: &DeviceRow,
        account: Uuid,
    ) -> Result<DevicePoll, Error> {
        let Some(owner) = self.account_live(account).await? else { return Ok(DevicePoll::Denied) };
        let scope = Scope { access: row.access, ..Scope::default() };
        let new = NewToken { name: format!("{} ({})", row.client, row.address), scope, valid: None };
        let (token, secret) = token_row(&owner, new)?;
        let caller = account_of(&owner, Credential::Token(token.id), Scope::default());
        let caller = client.with_identity(Identity::Account(caller.into()));
        let mut tx = self.store().begin().await?;
        if !tx.device_delete(&row.device_code).await? {
            return Ok(DevicePoll::Expired);
        }
        tx.token_insert(&token, &digest_of(secret.expose())).await?;
        self.audit(&mut tx, &caller, "token.create", subject(&owner), Value::String(token.name.clone()))
            .await?;
        tx.commit().await?;
        Ok(DevicePoll::Allowed(Box::new(token.try_into()?), secret))
    }
}

fn is_over(row: &DeviceRow) -> bool {
    now_ms() - row.created_at >= millis(DEVICE_TIME)
}

fn new_user_code() -> Result<String, Error> {
    let mut code = String::with_capacity(CODE_LEN + 1);
    while code.len() < CODE_LEN {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::io("random bytes", std::io::Error::other(error)))?;
        // 240 is the largest multiple of 20: each letter is equally likely.
        let letters = bytes.iter().filter(|byte| **byte < 240).map(|byte| LETTERS[usize::from(*byte) % 20]);
        code.extend(letters.take(CODE_LEN - code.len()).map(char::from));
    }
    code.insert(CODE_LEN / 2, '-');
    Ok(code)
}

/// A code as it is stored, whatever case and separators the person has typed.
fn canonical(code: &str) -> String {
    let letters = code.chars().filter(char::is_ascii_alphabetic).take(CODE_LEN + 1);
    let mut code: String = letters.map(|letter| letter.to_ascii_uppercase()).collect();
    if code.len() == CODE_LEN {
        code.insert(CODE_LEN / 2, '-');
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_easy_to_type() {
        for _ in 0..100 {
            let code = new_user_code().unwrap();
            let (left, right) = code.split_once('-').unwrap();
            assert_eq!((left.len(), right.len()), (4, 4), "{code}");
            assert_eq!(canonical(&code.to_lowercase().replace('-', " ")), code);
        }
        for wrong in ["", "BCDF", "BCDF-GHJK-L", "日本語"] {
            assert!(!canonical(wrong).contains('-'), "{wrong}");
        }
    }
}
