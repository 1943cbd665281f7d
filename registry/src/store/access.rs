//! What a caller may do and see: the rights on a target, the filter of listings, and the version that each
//! change of accounts, groups, tokens, grants or visibility raises, so that every replica drops what it
//! remembers.

use uuid::Uuid;

use super::{Engine, Store, Tx, query};
use crate::Error;
use crate::auth::{AccessTarget, Rights, Role, Visibility};

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

pub(super) fn role(number: i64) -> Result<Role, Error> {
    Role::from_number(number).ok_or(Error::Corrupt { what: "role", value: number.to_string() })
}

pub(super) fn visibility(number: i64) -> Result<Visibility, Error> {
    Visibility::from_number(number).ok_or(Error::Corrupt { what: "visibility", value: number.to_string() })
}

pub(super) fn id_list(ids: &[Uuid]) -> String {
    serde_json::Value::from_iter(ids.iter().map(Uuid::to_string)).to_string()
}

impl Store {
    /// An SQL condition: a [`ListFilter`] shows the repository of this column. Its four parameters begin at
    /// `first`.
    pub(super) fn is_listed(&self, column: &str, first: usize) -> String {
        let column = self.in_bytes(column);
        let [all, visibility, subjects, targets] = [first, first + 1, first + 2, first + 3];
        let subjects = format!("(select value from json_each(${subjects}))");
        let (namespace, is_subject) = match self.0 {
            Engine::Sqlite(_) => (
                format!("substr({column}, 1, instr({column} || '/', '/') - 1) || '/*'"),
                format!("g.subject in {subjects}"),
            ),
            // As an array it is read once. A subquery would be joined for each repository, in twice the time.
            Engine::Postgres(_) => {
                (format!("split_part({column}, '/', 1) || '/*'"), format!("g.subject = any(array{subjects})"))
            }
        };
        format!(
            "(cast(${all} as bigint) = 1
              or ((coalesce((select v.visibility from visibilities v where v.target = {column}),
                            (select v.visibility from visibilities v where v.target = {namespace}), 0)
                       >= cast(${visibility} as bigint)
                   or exists (select 1 from grants g where g.target in ({column}, {namespace})
                       and {is_subject}))
                  and (cast(${targets} as text) = '[]'
                       or {column} in (select value from json_each(${targets}))
                       or {namespace} in (select value from json_each(${targets})))))"
        )
    }

    pub(crate) async fn access_state(&self) -> Result<AccessState, Error> {
        let row: StateColumns = query!(self.read(), c => sqlx::query_as(
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
        let row: RightsColumns = query!(self.read(), c => sqlx::query_as(
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
}

impl Tx {
    /// Raises the version, so that every replica drops what it remembers. Part of each change.
    pub(crate) async fn access_changed(&mut self) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query("update access_state set version = version + 1")
            .execute(c).await.map(drop))?;
        Ok(())
    }
}
