//! The identities with which people sign in at a provider, and the groups whose members it decides.

use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;

/// A person as a provider knows it, and its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityRow {
    pub(crate) issuer: String,
    /// The person's id at the issuer.
    pub(crate) subject: String,
    pub(crate) account: Uuid,
    /// The provider's name in the settings.
    pub(crate) provider: String,
    pub(crate) created_at: i64,
    pub(crate) used_at: i64,
}

#[derive(sqlx_macros::FromRow)]
struct IdentityColumns {
    issuer: String,
    subject: String,
    account: String,
    provider: String,
    created_at: i64,
    used_at: i64,
}

impl TryFrom<IdentityColumns> for IdentityRow {
    type Error = Error;

    fn try_from(row: IdentityColumns) -> Result<IdentityRow, Error> {
        Ok(IdentityRow {
            issuer: row.issuer,
            subject: row.subject,
            account: parse_stored("account", &row.account)?,
            provider: row.provider,
            created_at: row.created_at,
            used_at: row.used_at,
        })
    }
}

impl Store {
    pub(crate) async fn identity_find(
        &self,
        issuer: &str,
        subject: &str,
    ) -> Result<Option<IdentityRow>, Error> {
        let row: Option<IdentityColumns> = query!(self.read(), c => sqlx::query_as(
            "select issuer, subject, account, provider, created_at, used_at from identities
             where issuer = $1 and subject = $2")
            .bind(issuer).bind(subject).fetch_optional(c).await)?;
        row.map(IdentityRow::try_from).transpose()
    }

    /// The identities of an account, oldest first.
    pub(crate) async fn identity_list(&self, account: Uuid) -> Result<Vec<IdentityRow>, Error> {
        let rows: Vec<IdentityColumns> = query!(self.read(), c => sqlx::query_as(
            "select issuer, subject, account, provider, created_at, used_at from identities
             where account = $1 order by created_at, issuer, subject")
            .bind(account.to_string()).fetch_all(c).await)?;
        rows.into_iter().map(IdentityRow::try_from).collect()
    }

    /// The groups whose members a provider decides, with its names for them.
    pub(crate) async fn provider_groups(&self, provider: &str) -> Result<Vec<(Uuid, String)>, Error> {
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(
            "select id, coalesce(claim, name) as claim from groups where provider = $1 order by id")
            .bind(provider).fetch_all(c).await)?;
        rows.into_iter().map(|(id, claim)| Ok((parse_stored("group", &id)?, claim))).collect()
    }
}

impl Tx {
    /// Returns false if an account has this identity.
    pub(crate) async fn identity_insert(&mut self, row: &IdentityRow) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "insert into identities (issuer, subject, account, provider, created_at, used_at)
             values ($1, $2, $3, $4, $5, $6) on conflict (issuer, subject) do nothing")
            .bind(&row.issuer).bind(&row.subject).bind(row.account.to_string()).bind(&row.provider)
            .bind(row.created_at).bind(row.used_at).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    pub(crate) async fn identity_used(&mut self, row: &IdentityRow, at: i64) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "update identities set used_at = $3, provider = $4 where issuer = $1 and subject = $2")
            .bind(&row.issuer).bind(&row.subject).bind(at).bind(&row.provider).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Whether an account has a password or an identity.
    pub(crate) async fn can_sign_in(&mut self, account: Uuid) -> Result<bool, Error> {
        let (can,): (bool,) = query!(self.conn(), c => sqlx::query_as(
            "select exists (select 1 from accounts where id = $1 and password is not null)
                 or exists (select 1 from identities where account = $1)")
            .bind(account.to_string()).fetch_one(c).await)?;
        Ok(can)
    }

    /// Returns false if the account has no such identity.
    pub(crate) async fn identity_delete(
        &mut self,
        account: Uuid,
        issuer: &str,
        subject: &str,
    ) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "delete from identities where account = $1 and issuer = $2 and subject = $3")
            .bind(account.to_string()).bind(issuer).bind(subject)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }
}
