//! Accounts, groups, tokens, grants and visibility. Each change raises a version, so that every replica drops
//! what it remembers.

use lode_client::Secret;
use lode_model::digest::Digest;
use uuid::Uuid;

use super::{Engine, Store, Tx, on, parse_stored};
use crate::Error;
use crate::auth::{AccessTarget, AccountKind, Rights, Role, ServerRole, Visibility};
use crate::time::now_ms;

/// The state of access control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessState {
    /// Raised by each change.
    pub(crate) version: i64,
    /// Without an account, the server is open.
    pub(crate) has_accounts: bool,
    pub(crate) has_tag_rules: bool,
    pub(crate) has_quotas: bool,
}

#[derive(sqlx_macros::FromRow)]
struct StateColumns {
    version: i64,
    has_accounts: bool,
    has_tag_rules: bool,
    has_quotas: bool,
}

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

/// A token of an account. Only its digest is stored.
#[derive(Clone, Debug)]
pub(crate) struct TokenRow {
    pub(crate) id: Uuid,
    pub(crate) account: Uuid,
    pub(crate) name: String,
    pub(crate) last_four: String,
    /// JSON.
    pub(crate) scope: String,
    pub(crate) created_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) used_at: Option<i64>,
    pub(crate) revoked_at: Option<i64>,
    /// The publisher that has created it.
    pub(crate) publisher: Option<Uuid>,
}

#[derive(sqlx_macros::FromRow)]
struct TokenColumns {
    id: String,
    account: String,
    name: String,
    last_four: String,
    scope: String,
    created_at: i64,
    expires_at: Option<i64>,
    used_at: Option<i64>,
    revoked_at: Option<i64>,
    publisher: Option<String>,
}

impl TryFrom<TokenColumns> for TokenRow {
    type Error = Error;

    fn try_from(row: TokenColumns) -> Result<TokenRow, Error> {
        Ok(TokenRow {
            id: parse_stored("token", &row.id)?,
            account: parse_stored("account", &row.account)?,
            name: row.name,
            last_four: row.last_four,
            scope: row.scope,
            created_at: row.created_at,
            expires_at: row.expires_at,
            used_at: row.used_at,
            revoked_at: row.revoked_at,
            publisher: row.publisher.map(|id| parse_stored("publisher", &id)).transpose()?,
        })
    }
}

/// A group of accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupRow {
    pub(crate) name: String,
    /// The sign-in provider that decides its members.
    pub(crate) provider: Option<String>,
    /// The provider's name for the group; absent: `name`.
    pub(crate) claim: Option<String>,
    /// Names of accounts.
    pub(crate) members: Vec<String>,
}

/// A group with one of its members.
#[derive(sqlx_macros::FromRow)]
struct GroupColumns {
    name: String,
    provider: Option<String>,
    claim: Option<String>,
    member: Option<String>,
}

/// A role of a subject on a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantRow {
    pub(crate) target: AccessTarget,
    /// The name of the account or group.
    pub(crate) subject: String,
    pub(crate) is_group: bool,
    pub(crate) role: Role,
}

#[derive(sqlx_macros::FromRow)]
struct GrantColumns {
    target: String,
    subject: String,
    is_group: bool,
    role: i64,
}

/// Which repositories a listing shows.
#[derive(Clone, Debug)]
pub(crate) enum ListFilter {
    All,
    None,
    /// Those with at least this visibility or a grant to one of the subjects, within the targets (empty: all).
    Readable {
        visibility: Visibility,
        subjects: Vec<Uuid>,
        targets: Vec<AccessTarget>,
    },
}

impl ListFilter {
    /// The four parameters of [`Store::is_listed`].
    pub(super) fn parameters(&self) -> (i64, i64, String, String) {
        match self {
            ListFilter::All => (1, 0, "[]".to_owned(), "[]".to_owned()),
            // More than any visibility.
            ListFilter::None => (0, Visibility::Public as i64 + 1, "[]".to_owned(), "[]".to_owned()),
            ListFilter::Readable { visibility, subjects, targets } => {
                let targets = serde_json::Value::from_iter(targets.iter().map(ToString::to_string));
                (0, *visibility as i64, id_list(subjects), targets.to_string())
            }
        }
    }
}

#[derive(sqlx_macros::FromRow)]
struct RightsColumns {
    role: Option<i64>,
    visibility: Option<i64>,
    is_stored: bool,
}

fn role(number: i64) -> Result<Role, Error> {
    Role::from_number(number).ok_or(Error::Corrupt { what: "role", value: number.to_string() })
}

fn visibility(number: i64) -> Result<Visibility, Error> {
    Visibility::from_number(number).ok_or(Error::Corrupt { what: "visibility", value: number.to_string() })
}

fn id_list(ids: &[Uuid]) -> String {
    serde_json::Value::from_iter(ids.iter().map(Uuid::to_string)).to_string()
}

impl Store {
    /// An SQL condition: a [`ListFilter`] shows the repository of this column. Its four parameters begin at
    /// `first`.
    pub(super) fn is_listed(&self, column: &str, first: usize) -> String {
        let namespace = match self.0 {
            Engine::Sqlite(_) => format!("substr({column}, 1, instr({column} || '/', '/') - 1) || '/*'"),
            Engine::Postgres(_) => format!("split_part({column}, '/', 1) || '/*'"),
        };
        let [all, visibility, subjects, targets] = [first, first + 1, first + 2, first + 3];
        format!(
            "(cast(${all} as bigint) = 1
              or ((coalesce((select v.visibility from visibilities v where v.target = {column}),
                            (select v.visibility from visibilities v where v.target = {namespace}), 0)
                       >= cast(${visibility} as bigint)
                   or exists (select 1 from grants g where g.target in ({column}, {namespace})
                       and g.subject in (select value from json_each(${subjects}))))
                  and (cast(${targets} as text) = '[]'
                       or {column} in (select value from json_each(${targets}))
                       or {namespace} in (select value from json_each(${targets})))))"
        )
    }

    pub(crate) async fn access_state(&self) -> Result<AccessState, Error> {
        let row: StateColumns = on!(self.read(), c => sqlx::query_as(
            "select version, exists (select 1 from accounts) as has_accounts,
                    exists (select 1 from tag_rules) as has_tag_rules,
                    exists (select 1 from quotas) as has_quotas
             from access_state")
            .fetch_one(c).await)?;
        let StateColumns { version, has_accounts, has_tag_rules, has_quotas } = row;
        Ok(AccessState { version, has_accounts, has_tag_rules, has_quotas })
    }

    /// The rights on a target of an account and its groups, and whether the target is a repository that exists.
    /// An anonymous client has no subjects.
    pub(crate) async fn rights_find(
        &self,
        target: &AccessTarget,
        subjects: &[Uuid],
    ) -> Result<(Rights, bool), Error> {
        let namespace = match target {
            AccessTarget::Repository(repository) => AccessTarget::namespace_of(repository).to_string(),
            AccessTarget::Namespace(_) => target.to_string(),
        };
        let row: RightsColumns = on!(self.read(), c => sqlx::query_as(
            "select (select max(role) from grants
                     where target in ($1, $2) and subject in (select value from json_each($3))) as role,
                    coalesce((select visibility from visibilities where target = $1),
                             (select visibility from visibilities where target = $2)) as visibility,
                    exists (select 1 from repositories where name = $1) as is_stored")
            .bind(target.to_string()).bind(&namespace).bind(id_list(subjects)).fetch_one(c).await)?;
        let rights = Rights {
            role: row.role.map(role).transpose()?,
            visibility: row.visibility.map(visibility).transpose()?.unwrap_or_default(),
        };
        Ok((rights, row.is_stored))
    }

    pub(crate) async fn account_find_by_name(&self, name: &str) -> Result<Option<AccountRow>, Error> {
        let row: Option<AccountColumns> = on!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select {ACCOUNT_COLUMNS} from accounts where name = $1")))
            .bind(name).fetch_optional(c).await)?;
        self.with_groups(row).await
    }

    pub(crate) async fn account_find(&self, id: Uuid) -> Result<Option<AccountRow>, Error> {
        let row: Option<AccountColumns> = on!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select {ACCOUNT_COLUMNS} from accounts where id = $1")))
            .bind(id.to_string()).fetch_optional(c).await)?;
        self.with_groups(row).await
    }

    async fn with_groups(&self, row: Option<AccountColumns>) -> Result<Option<AccountRow>, Error> {
        let Some(row) = row else { return Ok(None) };
        let ids: Vec<(String,)> = on!(self.read(), c => sqlx::query_as(
            "select group_id from group_members where account = $1 order by group_id")
            .bind(&row.id).fetch_all(c).await)?;
        let groups = ids.iter().map(|(id,)| parse_stored("group", id)).collect::<Result<_, _>>()?;
        row.decode(groups).map(Some)
    }

    /// Accounts by name, after `after` and before `before`, at most `limit`; without their groups.
    pub(crate) async fn account_list(
        &self,
        after: &str,
        before: Option<&str>,
        limit: i64,
    ) -> Result<Vec<AccountRow>, Error> {
        let rows: Vec<AccountColumns> = on!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select {ACCOUNT_COLUMNS} from accounts
             where name > $1 and (cast($2 as text) is null or name < $2) order by name limit $3")))
            .bind(after).bind(before).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(|row| row.decode(Vec::new())).collect()
    }

    /// The token with this digest, whether or not it is still valid.
    pub(crate) async fn token_find(&self, secret: &Digest) -> Result<Option<TokenRow>, Error> {
        let row: Option<TokenColumns> = on!(self.read(), c => sqlx::query_as(
            "select id, account, name, last_four, scope, created_at, expires_at, used_at, revoked_at, publisher
             from access_tokens where secret = $1")
            .bind(secret.as_str()).fetch_optional(c).await)?;
        row.map(TokenRow::try_from).transpose()
    }

    pub(crate) async fn token_find_by_id(&self, id: Uuid) -> Result<Option<TokenRow>, Error> {
        let row: Option<TokenColumns> = on!(self.read(), c => sqlx::query_as(
            "select id, account, name, last_four, scope, created_at, expires_at, used_at, revoked_at, publisher
             from access_tokens where id = $1")
            .bind(id.to_string()).fetch_optional(c).await)?;
        row.map(TokenRow::try_from).transpose()
    }

    /// The tokens of an account, newest first.
    pub(crate) async fn token_list(&self, account: Uuid) -> Result<Vec<TokenRow>, Error> {
        let rows: Vec<TokenColumns> = on!(self.read(), c => sqlx::query_as(
            "select id, account, name, last_four, scope, created_at, expires_at, used_at, revoked_at, publisher
             from access_tokens where account = $1 order by id desc")
            .bind(account.to_string()).fetch_all(c).await)?;
        rows.into_iter().map(TokenRow::try_from).collect()
    }

    /// Records the use of a token.
    pub(crate) async fn token_used(&self, id: Uuid, at: i64) -> Result<(), Error> {
        on!(self.write(), c => sqlx::query("update access_tokens set used_at = $2 where id = $1")
            .bind(id.to_string()).bind(at).execute(c).await.map(drop))?;
        Ok(())
    }

    /// The namespaces in which these subjects have a role, with the highest, at most `limit`.
    pub(crate) async fn namespaces_granted(
        &self,
        subjects: &[Uuid],
        limit: i64,
    ) -> Result<Vec<(AccessTarget, Role)>, Error> {
        let rows: Vec<(String, i64)> = on!(self.read(), c => sqlx::query_as(
            "select target, max(role) as role from grants
             where subject in (select value from json_each($1)) and target like '%/*'
             group by target order by target limit $2")
            .bind(id_list(subjects)).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(target, number)| Ok((parse_stored("target", &target)?, role(number)?)))
            .collect()
    }

    /// Visibilities by target; those of one target and of its namespace if it is given.
    pub(crate) async fn visibility_list(
        &self,
        target: Option<&AccessTarget>,
    ) -> Result<Vec<(AccessTarget, Visibility)>, Error> {
        let namespace = match target {
            Some(AccessTarget::Repository(repository)) => Some(AccessTarget::namespace_of(repository)),
            _ => None,
        };
        let rows: Vec<(String, i64)> = on!(self.read(), c => sqlx::query_as(
            "select target, visibility from visibilities
             where cast($1 as text) is null or target in ($1, $2) order by target")
            .bind(target.map(ToString::to_string)).bind(namespace.map(|target| target.to_string()))
            .fetch_all(c).await)?;
        rows.into_iter()
            .map(|(target, number)| Ok((parse_stored("target", &target)?, visibility(number)?)))
            .collect()
    }

    /// Grants, by target and subject; those of one target if it is given.
    pub(crate) async fn grant_list(&self, target: Option<&AccessTarget>) -> Result<Vec<GrantRow>, Error> {
        let rows: Vec<GrantColumns> = on!(self.read(), c => sqlx::query_as(
            "select g.target, coalesce(a.name, t.name) as subject, a.name is null as is_group, g.role
             from grants g left join accounts a on a.id = g.subject left join groups t on t.id = g.subject
             where (cast($1 as text) is null or g.target = $1) and coalesce(a.name, t.name) is not null
             order by g.target, subject")
            .bind(target.map(ToString::to_string)).fetch_all(c).await)?;
        rows.into_iter()
            .map(|row| {
                Ok(GrantRow {
                    target: parse_stored("target", &row.target)?,
                    subject: row.subject,
                    is_group: row.is_group,
                    role: role(row.role)?,
                })
            })
            .collect()
    }
}

impl Store {
    pub(crate) async fn group_find(&self, name: &str) -> Result<Option<Uuid>, Error> {
        let row: Option<(String,)> = on!(self.read(), c => sqlx::query_as("select id from groups where name = $1")
            .bind(name).fetch_optional(c).await)?;
        row.map(|(id,)| parse_stored("group", &id)).transpose()
    }

    /// Groups with the names of their members, both in order.
    pub(crate) async fn group_list(&self) -> Result<Vec<GroupRow>, Error> {
        let rows: Vec<GroupColumns> = on!(self.read(), c => sqlx::query_as(
            "select g.name, g.provider, g.claim, a.name as member from groups g left join group_members m on m.group_id = g.id
                 left join accounts a on a.id = m.account
             order by g.name, a.name")
            .fetch_all(c).await)?;
        let mut groups: Vec<GroupRow> = Vec::new();
        for GroupColumns { name, provider, claim, member } in rows {
            if groups.last().is_none_or(|last| last.name != name) {
                groups.push(GroupRow { name, provider, claim, members: Vec::new() });
            }
            if let Some(last) = groups.last_mut() {
                last.members.extend(member);
            }
        }
        Ok(groups)
    }
}

impl Tx {
    /// Whether an administrator can sign in with a password.
    pub(crate) async fn has_admin(&mut self) -> Result<bool, Error> {
        let (found,): (bool,) = on!(self.conn(), c => sqlx::query_as(
            "select exists (select 1 from accounts
                 where server_role = 'admin' and password is not null and disabled_at is null)")
            .fetch_one(c).await)?;
        Ok(found)
    }

    /// Adds a group. Returns false if an account or a group has the name.
    pub(crate) async fn group_insert(
        &mut self,
        id: Uuid,
        name: &str,
        provider: Option<&str>,
        claim: Option<&str>,
    ) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query(
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
            on!(self.conn(), c => sqlx::query(text).bind(id.to_string()).execute(c).await.map(drop))?;
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
        on!(self.conn(), c => sqlx::query(text)
            .bind(account.to_string()).bind(group.to_string()).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Raises the version, so that every replica drops what it remembers. Part of each change.
    pub(crate) async fn access_changed(&mut self) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query("update access_state set version = version + 1")
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Adds an account. Returns false if an account or a group has the name.
    pub(crate) async fn account_insert(&mut self, account: &AccountRow) -> Result<bool, Error> {
        let kind = match account.kind {
            AccountKind::User => "user",
            AccountKind::Robot => "robot",
        };
        let rows = on!(self.conn(), c => sqlx::query(
            "insert into accounts (id, kind, name, password, server_role, epoch, created_at)
             select $1, $2, $3, $4, $5, $6, $7 where not exists (select 1 from groups where name = $3)
             on conflict (name) do nothing")
            .bind(account.id.to_string()).bind(kind).bind(&account.name)
            .bind(account.password.as_ref().map(Secret::expose))
            .bind(account.server_role.map(ServerRole::as_str)).bind(account.epoch).bind(account.created_at)
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Whether there is an account. Waits for another transaction that adds one.
    pub(crate) async fn has_accounts(&mut self) -> Result<bool, Error> {
        // The row's lock makes two first accounts follow each other.
        self.access_changed().await?;
        let (found,): (bool,) = on!(self.conn(), c => sqlx::query_as("select exists (select 1 from accounts)")
            .fetch_one(c).await)?;
        Ok(found)
    }

    /// Makes every repository without a visibility of its own internal.
    pub(crate) async fn repositories_make_internal(&mut self) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "insert into visibilities (target, visibility) select name, cast($1 as bigint) from repositories where true
             on conflict (target) do nothing")
            .bind(Visibility::Internal as i64).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Changes an account, and raises its epoch. Returns false if the account does not exist.
    pub(crate) async fn account_update(&mut self, id: Uuid, update: &AccountUpdate) -> Result<bool, Error> {
        let AccountUpdate { password, server_role, is_disabled } = update;
        let flag = |set: Option<bool>| set.map(i64::from);
        let rows = on!(self.conn(), c => sqlx::query(
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
        on!(self.conn(), c => sqlx::query("update accounts set epoch = epoch + 1 where id = $1")
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
            on!(self.conn(), c => sqlx::query(text)
                .bind(account.id.to_string()).bind(&account.name).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// Whether a namespace has repositories, robots or settings. In byte order `0` follows `/`, and `,` follows
    /// `+`.
    pub(crate) async fn namespace_is_used(&mut self, namespace: &str) -> Result<bool, Error> {
        let (is_used,): (bool,) = on!(self.conn(), c => sqlx::query_as(
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

    pub(crate) async fn token_insert(&mut self, token: &TokenRow, secret: &Digest) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "insert into access_tokens (id, account, name, secret, last_four, scope, created_at, expires_at, publisher)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
            .bind(token.id.to_string()).bind(token.account.to_string()).bind(&token.name).bind(secret.as_str())
            .bind(&token.last_four).bind(&token.scope).bind(token.created_at).bind(token.expires_at)
            .bind(token.publisher.map(|id| id.to_string()))
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Revokes a token of an account. Returns false if there is none that is valid.
    pub(crate) async fn token_revoke(&mut self, account: Uuid, id: Uuid) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query(
            "update access_tokens set revoked_at = $3 where account = $1 and id = $2 and revoked_at is null")
            .bind(account.to_string()).bind(id.to_string()).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    pub(crate) async fn grant_put(
        &mut self,
        target: &AccessTarget,
        subject: Uuid,
        role: Role,
    ) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "insert into grants (target, subject, role, granted_at) values ($1, $2, $3, $4)
             on conflict (target, subject) do update set role = excluded.role, granted_at = excluded.granted_at")
            .bind(target.to_string()).bind(subject.to_string()).bind(role as i64).bind(now_ms())
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Returns false if there is no such grant.
    pub(crate) async fn grant_delete(&mut self, target: &AccessTarget, subject: Uuid) -> Result<bool, Error> {
        let rows = on!(self.conn(), c => sqlx::query("delete from grants where target = $1 and subject = $2")
            .bind(target.to_string()).bind(subject.to_string())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    pub(crate) async fn visibility_put(
        &mut self,
        target: &AccessTarget,
        visibility: Visibility,
    ) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query(
            "insert into visibilities (target, visibility) values ($1, $2)
             on conflict (target) do update set visibility = excluded.visibility")
            .bind(target.to_string()).bind(visibility as i64).execute(c).await.map(drop))?;
        Ok(())
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
