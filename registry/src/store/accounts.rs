//! Accounts.

use lode_client::Secret;
use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::auth::{AccountKind, ServerRole};
use crate::time::now_ms;

/// An account.
#[derive(Clone, Debug)]
pub(crate) struct AccountRow {
    pub(crate) id: Uuid,
    pub(crate) kind: AccountKind,
    pub(crate) name: String,
    /// The hash.
    pub(crate) password: Option<Secret>,
    pub(crate) server_role: Option<ServerRole>,
    /// Raised to invalidate sessions and access tokens.
    pub(crate) epoch: i64,
    pub(crate) created_at: i64,
    pub(crate) disabled_at: Option<i64>,
    pub(crate) groups: Vec<Uuid>,
}

#[derive(sqlx_macros::FromRow)]
struct AccountColumns {
    id: String,
    kind: String,
    name: String,
    password: Option<String>,
    server_role: Option<String>,
    epoch: i64,
    created_at: i64,
    disabled_at: Option<i64>,
}

impl AccountColumns {
    fn decode(self, groups: Vec<Uuid>) -> Result<AccountRow, Error> {
        Ok(AccountRow {
            id: parse_stored("account", &self.id)?,
            kind: match &self.kind[..] {
                "user" => AccountKind::User,
                "robot" => AccountKind::Robot,
                _ => return Err(Error::Corrupt { what: "kind of account", value: self.kind }),
            },
            name: self.name,
            password: self.password.map(Secret::new),
            server_role: self.server_role.map(|role| parse_stored("server role", &role)).transpose()?,
            epoch: self.epoch,
            created_at: self.created_at,
            disabled_at: self.disabled_at,
            groups,
        })
    }
}

/// A change of an account; `None` leaves a value as it is in the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccountUpdate {
    /// The hash.
    pub(crate) password: Option<Secret>,
    pub(crate) server_role: Option<Option<ServerRole>>,
    pub(crate) is_disabled: Option<bool>,
}

const ACCOUNT_COLUMNS: &str = "id, kind, name, password, server_role, epoch, created_at, disabled_at";

impl Store {
    pub(crate) async fn account_find_by_name(&self, name: &str) -> Result<Option<AccountRow>, Error> {
        let row: Option<AccountColumns> = query!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select {ACCOUNT_COLUMNS} from accounts where name = $1")))
            .bind(name).fetch_optional(c).await)?;
        self.with_groups(row).await
    }

    pub(crate) async fn account_find(&self, id: Uuid) -> Result<Option<AccountRow>, Error> {
        let row: Option<AccountColumns> = query!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select {ACCOUNT_COLUMNS} from accounts where id = $1")))
            .bind(id.to_string()).fetch_optional(c).await)?;
        self.with_groups(row).await
    }

    async fn with_groups(&self, row: Option<AccountColumns>) -> Result<Option<AccountRow>, Error> {
        let Some(row) = row else { return Ok(None) };
        let ids: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select group_id from group_members where account = $1 order by group_id")
            .bind(&row.id).fetch_all(c).await)?;
        let groups = ids.iter().map(|(id,)| parse_stored("group", id)).collect::<Result<_, _>>()?;
        row.decode(groups).map(Some)
    }

    /// Accounts whose names begin with `prefix`, by name, after `after`, at most `limit`; without their groups.
    pub(crate) async fn account_list(
        &self,
        prefix: &str,
        after: &str,
        limit: i64,
    ) -> Result<Vec<AccountRow>, Error> {
        // In byte order `~` follows all characters of names.
        let rows: Vec<AccountColumns> = query!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select {ACCOUNT_COLUMNS} from accounts
             where name >= $1 and name < $1 || '~' and name > $2 order by name limit $3")))
            .bind(prefix).bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(|row| row.decode(Vec::new())).collect()
    }
}

impl Tx {
    /// Whether an administrator can sign in with a password.
    pub(crate) async fn has_admin(&mut self) -> Result<bool, Error> {
        let (found,): (bool,) = query!(self.conn(), c => sqlx::query_as(
            "select exists (select 1 from accounts
                 where server_role = 'admin' and password is not null and disabled_at is null)")
            .fetch_one(c).await)?;
        Ok(found)
    }

    /// Whether there is an account. Waits for another transaction that adds one.
    pub(crate) async fn has_accounts(&mut self) -> Result<bool, Error> {
        // The row's lock makes two first accounts follow each other.
        self.access_changed().await?;
        let (found,): (bool,) = query!(self.conn(), c => sqlx::query_as("select exists (select 1 from accounts)")
            .fetch_one(c).await)?;
        Ok(found)
    }

    /// Adds an account. Returns false if an account or a group has the name.
    pub(crate) async fn account_insert(&mut self, account: &AccountRow) -> Result<bool, Error> {
        let kind = match account.kind {
            AccountKind::User => "user",
            AccountKind::Robot => "robot",
        };
        let rows = query!(self.conn(), c => sqlx::query(
            "insert into accounts (id, kind, name, password, server_role, epoch, created_at)
             select $1, $2, $3, $4, $5, $6, $7 where not exists (select 1 from groups where name = $3)
             on conflict (name) do nothing")
            .bind(account.id.to_string()).bind(kind).bind(&account.name)
            .bind(account.password.as_ref().map(Secret::expose))
            .bind(account.server_role.map(ServerRole::as_str)).bind(account.epoch).bind(account.created_at)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Changes an account, and raises its epoch. Returns false if the account does not exist.
    pub(crate) async fn account_update(&mut self, id: Uuid, update: &AccountUpdate) -> Result<bool, Error> {
        let AccountUpdate { password, server_role, is_disabled } = update;
        let flag = |set: Option<bool>| set.map(i64::from);
        let rows = query!(self.conn(), c => sqlx::query(
            "update accounts set password = coalesce($2, password),
                 server_role = case cast($3 as bigint) when 1 then $4 else server_role end,
                 disabled_at = case cast($5 as bigint)
                     when 1 then coalesce(disabled_at, $6) when 0 then null else disabled_at end,
                 epoch = epoch + 1
             where id = $1")
            .bind(id.to_string()).bind(password.as_ref().map(Secret::expose))
            .bind(i64::from(server_role.is_some())).bind(server_role.flatten().map(ServerRole::as_str))
            .bind(flag(*is_disabled)).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Invalidates the access tokens of an account.
    pub(crate) async fn account_epoch_raise(&mut self, id: Uuid) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query("update accounts set epoch = epoch + 1 where id = $1")
            .bind(id.to_string()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Deletes an account with its tokens and grants, and the robots of the namespace with its name.
    pub(crate) async fn account_delete(&mut self, account: &AccountRow) -> Result<(), Error> {
        // In byte order `,` follows `+`.
        for text in [
            "delete from grants where subject in
                 (select id from accounts where id = $1 or (name > $2 || '+' and name < $2 || ','))",
            "delete from accounts where id = $1 or (name > $2 || '+' and name < $2 || ',')",
        ] {
            query!(self.conn(), c => sqlx::query(text)
                .bind(account.id.to_string()).bind(&account.name).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// Whether a namespace has repositories, robots or settings. In byte order `0` follows `/`, and `,` follows
    /// `+`.
    pub(crate) async fn namespace_is_used(&mut self, namespace: &str) -> Result<bool, Error> {
        let (is_used,): (bool,) = query!(self.conn(), c => sqlx::query_as(
            "select exists (select 1 from repositories where name = $1 or (name > $1 || '/' and name < $1 || '0'))
                 or exists (select 1 from grants where target = $1 or (target > $1 || '/' and target < $1 || '0'))
                 or exists (select 1 from visibilities
                            where target = $1 or (target > $1 || '/' and target < $1 || '0'))
                 or exists (select 1 from tag_rules
                            where target = $1 or (target > $1 || '/' and target < $1 || '0'))
                 or exists (select 1 from quotas where namespace = $1)
                 or exists (select 1 from accounts where name > $1 || '+' and name < $1 || ',')")
            .bind(namespace).fetch_one(c).await)?;
        Ok(is_used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_not_printed() {
        let password = Some(Secret::new("$argon2id$hash"));
        let update = AccountUpdate { password: password.clone(), ..AccountUpdate::default() };
        let row = AccountRow {
            id: Uuid::nil(),
            kind: AccountKind::User,
            name: "alice".to_owned(),
            password,
            server_role: None,
            epoch: 0,
            created_at: 0,
            disabled_at: None,
            groups: Vec::new(),
        };
        let printed = format!("{row:?} {update:?}");
        assert!(printed.contains("alice") && !printed.contains("argon2id"), "{printed}");
    }
}
