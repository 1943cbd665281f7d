//! Programs that wait until a person allows their sign-in in a browser (RFC 8628).

use lode_model::digest::Digest;
use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::auth::Access;

/// The decision about a sign-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceState {
    Pending,
    Allowed,
    Denied,
}

/// A program that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRow {
    /// The digest of the code that the program has.
    pub(crate) device_code: Digest,
    /// The code that the person sees.
    pub(crate) user_code: String,
    /// The program's name for itself.
    pub(crate) client: String,
    /// The access level of its token.
    pub(crate) access: Access,
    pub(crate) address: String,
    pub(crate) created_at: i64,
    pub(crate) polled_at: i64,
    /// Who has decided.
    pub(crate) account: Option<Uuid>,
    pub(crate) state: DeviceState,
}

#[derive(sqlx_macros::FromRow)]
struct DeviceColumns {
    device_code: String,
    user_code: String,
    client: String,
    access: String,
    address: String,
    created_at: i64,
    polled_at: i64,
    account: Option<String>,
    state: String,
}

impl TryFrom<DeviceColumns> for DeviceRow {
    type Error = Error;

    fn try_from(row: DeviceColumns) -> Result<DeviceRow, Error> {
        Ok(DeviceRow {
            device_code: parse_stored("device code", &row.device_code)?,
            user_code: row.user_code,
            client: row.client,
            access: parse_stored("access level", &row.access)?,
            address: row.address,
            created_at: row.created_at,
            polled_at: row.polled_at,
            account: row.account.map(|text| parse_stored("account", &text)).transpose()?,
            state: match &row.state[..] {
                "pending" => DeviceState::Pending,
                "allowed" => DeviceState::Allowed,
                "denied" => DeviceState::Denied,
                _ => return Err(Error::Corrupt { what: "state of a device", value: row.state }),
            },
        })
    }
}

impl Store {
    /// Adds a program that waits. Returns false if its user code is in use.
    pub(crate) async fn device_insert(&self, row: &DeviceRow) -> Result<bool, Error> {
        let rows = query!(self.write(), c => sqlx::query(
            "insert into device_logins (device_code, user_code, client, access, address, created_at)
             values ($1, $2, $3, $4, $5, $6) on conflict (user_code) do nothing")
            .bind(row.device_code.as_str()).bind(&row.user_code).bind(&row.client)
            .bind(row.access.as_str()).bind(&row.address)
            .bind(row.created_at).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// How many programs wait, and how many of them have this address.
    pub(crate) async fn device_count(&self, address: &str) -> Result<(i64, i64), Error> {
        Ok(query!(self.read(), c => sqlx::query_as(
            "select count(*) as total, coalesce(sum(case when address = $1 then 1 else 0 end), 0) as here
             from device_logins")
            .bind(address).fetch_one(c).await)?)
    }

    pub(crate) async fn device_find(&self, device_code: &Digest) -> Result<Option<DeviceRow>, Error> {
        let row: Option<DeviceColumns> = query!(self.read(), c => sqlx::query_as(
            "select device_code, user_code, client, access, address, created_at, polled_at, account, state
             from device_logins where device_code = $1")
            .bind(device_code.as_str()).fetch_optional(c).await)?;
        row.map(DeviceRow::try_from).transpose()
    }

    pub(crate) async fn device_find_by_user(&self, user_code: &str) -> Result<Option<DeviceRow>, Error> {
        let row: Option<DeviceColumns> = query!(self.read(), c => sqlx::query_as(
            "select device_code, user_code, client, access, address, created_at, polled_at, account, state
             from device_logins where user_code = $1")
            .bind(user_code).fetch_optional(c).await)?;
        row.map(DeviceRow::try_from).transpose()
    }

    /// Records that the program has asked for the decision.
    pub(crate) async fn device_polled(&self, device_code: &Digest, at: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("update device_logins set polled_at = $2 where device_code = $1")
            .bind(device_code.as_str()).bind(at).execute(c).await.map(drop))?;
        Ok(())
    }

    pub(crate) async fn devices_expire(&self, created_before: i64) -> Result<(), Error> {
        query!(self.write(), c => sqlx::query("delete from device_logins where created_at < $1")
            .bind(created_before).execute(c).await.map(drop))?;
        Ok(())
    }
}

impl Tx {
    /// Records a person's decision. Returns false if there was one already.
    pub(crate) async fn device_decide(
        &mut self,
        device_code: &Digest,
        account: Uuid,
        is_allowed: bool,
    ) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "update device_logins set account = $2, state = $3 where device_code = $1 and state = 'pending'")
            .bind(device_code.as_str()).bind(account.to_string())
            .bind(if is_allowed { "allowed" } else { "denied" })
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Ends the wait of a program. Returns false if another request did so first.
    pub(crate) async fn device_delete(&mut self, device_code: &Digest) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query("delete from device_logins where device_code = $1")
            .bind(device_code.as_str()).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}
