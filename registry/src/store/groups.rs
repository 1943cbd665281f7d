//! Groups of accounts.

use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::time::now_ms;

/// A group with one of its members, or without any.
#[derive(Clone, Debug, PartialEq, Eq, sqlx_macros::FromRow)]
pub(crate) struct MemberRow {
    /// Of the group.
    pub(crate) name: String,
    /// The sign-in provider that decides its members.
    pub(crate) provider: Option<String>,
    /// The provider's name for the group; absent: `name`.
    pub(crate) claim: Option<String>,
    /// The name of an account.
    pub(crate) member: Option<String>,
}

impl Store {
    pub(crate) async fn group_find(&self, name: &str) -> Result<Option<Uuid>, Error> {
        let row: Option<(String,)> = query!(self.read(), c => sqlx::query_as("select id from groups where name = $1")
            .bind(name).fetch_optional(c).await)?;
        row.map(|(id,)| parse_stored("group", &id)).transpose()
    }

    /// Whether a sign-in provider decides the members of a group.
    pub(crate) async fn group_has_provider(&self, id: Uuid) -> Result<bool, Error> {
        let found: Option<(i64,)> = query!(self.read(), c => sqlx::query_as(
            "select cast(1 as bigint) from groups where id = $1 and provider is not null")
            .bind(id.to_string()).fetch_optional(c).await)?;
        Ok(found.is_some())
    }

    /// Groups with their members after the names of a group and of a member, in their order, at most `limit` members.
    /// A group without members counts as one.
    pub(crate) async fn member_list(&self, after: (&str, &str), limit: i64) -> Result<Vec<MemberRow>, Error> {
        Ok(query!(self.read(), c => sqlx::query_as(
            "select g.name, g.provider, g.claim, a.name as member from groups g left join group_members m on m.group_id = g.id
                 left join accounts a on a.id = m.account
             where g.name >= $1 and (g.name > $1 or coalesce(a.name, '') > $2)
             order by g.name, coalesce(a.name, '') limit $3")
            .bind(after.0).bind(after.1).bind(limit).fetch_all(c).await)?)
    }
}

impl Tx {
    /// Adds a group. Returns false if an account or a group has the name.
    pub(crate) async fn group_insert(
        &mut self,
        id: Uuid,
        name: &str,
        provider: Option<&str>,
        claim: Option<&str>,
    ) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query(
            "insert into groups (id, name, created_at, provider, claim)
             select $1, $2, $3, $4, $5 where not exists (select 1 from accounts where name = $2)
             on conflict (name) do nothing")
            .bind(id.to_string()).bind(name).bind(now_ms()).bind(provider).bind(claim)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Deletes a group with its grants.
    pub(crate) async fn group_delete(&mut self, id: Uuid) -> Result<(), Error> {
        for text in ["delete from grants where subject = $1", "delete from groups where id = $1"] {
            query!(self.conn(), c => sqlx::query(text).bind(id.to_string()).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// Adds an account to a group, or removes it.
    pub(crate) async fn group_member_put(
        &mut self,
        group: Uuid,
        account: Uuid,
        is_member: bool,
    ) -> Result<(), Error> {
        let text = match is_member {
            true => "insert into group_members (account, group_id) values ($1, $2) on conflict do nothing",
            false => "delete from group_members where account = $1 and group_id = $2",
        };
        query!(self.conn(), c => sqlx::query(text)
            .bind(account.to_string()).bind(group.to_string()).execute(c).await.map(drop))?;
        Ok(())
    }
}
