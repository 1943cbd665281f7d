//! Grants of roles, and visibility.

use std::cmp::Ordering;

use uuid::Uuid;

use super::access::{id_list, role, visibility};
use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::auth::{AccessTarget, Role, Visibility};
use crate::time::now_ms;

/// A role of a subject on a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantRow {
    pub(crate) target: AccessTarget,
    pub(crate) subject_id: Uuid,
    /// The name of the account or group.
    pub(crate) subject: String,
    pub(crate) is_group: bool,
    pub(crate) role: Role,
}

#[derive(sqlx_macros::FromRow)]
struct GrantColumns {
    target: String,
    subject_id: String,
    subject: String,
    is_group: bool,
    role: i64,
}

impl Store {
    /// The namespaces in which these subjects have a role, with the highest, at most `limit`.
    pub(crate) async fn namespaces_granted(
        &self,
        subjects: &[Uuid],
        limit: i64,
    ) -> Result<Vec<(AccessTarget, Role)>, Error> {
        let rows: Vec<(String, i64)> = query!(self.read(), c => sqlx::query_as(
            "select target, max(role) as role from grants
             where subject in (select value from json_each($1)) and target like '%/*'
             group by target order by target limit $2")
            .bind(id_list(subjects)).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(target, number)| Ok((parse_stored("target", &target)?, role(number)?)))
            .collect()
    }

    /// The roles of one subject, by target, at most `limit`.
    pub(crate) async fn grants_of(
        &self,
        subject: Uuid,
        limit: i64,
    ) -> Result<Vec<(AccessTarget, Role)>, Error> {
        let rows: Vec<(String, i64)> = query!(self.read(), c => sqlx::query_as(
            "select target, role from grants where subject = $1 order by target limit $2")
            .bind(subject.to_string()).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|(target, number)| Ok((parse_stored("target", &target)?, role(number)?)))
            .collect()
    }

    /// Grants after a target and a subject's id, in their order, at most `limit`; those of one target if it is given.
    pub(crate) async fn grant_list(
        &self,
        target: Option<&AccessTarget>,
        after: (&str, &str),
        limit: i64,
    ) -> Result<Vec<GrantRow>, Error> {
        let of_target = target.map(ToString::to_string);
        let (condition, target, subject) = match &of_target {
            None => ("(g.target, g.subject) > ($1, $2)", after.0, after.1),
            Some(target) => {
                let subject = match after.0.cmp(target) {
                    Ordering::Less => "",
                    Ordering::Equal => after.1,
                    Ordering::Greater => return Ok(Vec::new()),
                };
                ("g.target = $1 and g.subject > $2", &target[..], subject)
            }
        };
        let rows: Vec<GrantColumns> = query!(self.read(), c => sqlx::query_as(sqlx::AssertSqlSafe(format!(
            "select g.target, g.subject as subject_id, coalesce(a.name, t.name) as subject, a.name is null as is_group,
                 g.role
             from grants g left join accounts a on a.id = g.subject left join groups t on t.id = g.subject
             where {condition} and coalesce(a.name, t.name) is not null
             order by g.target, g.subject limit $3")))
            .bind(target).bind(subject).bind(limit).fetch_all(c).await)?;
        rows.into_iter()
            .map(|row| {
                Ok(GrantRow {
                    target: parse_stored("target", &row.target)?,
                    subject_id: parse_stored("subject", &row.subject_id)?,
                    subject: row.subject,
                    is_group: row.is_group,
                    role: role(row.role)?,
                })
            })
            .collect()
    }

    /// Visibilities by target, after `after`, at most `limit`.
    pub(crate) async fn visibility_list(
        &self,
        after: &str,
        limit: i64,
    ) -> Result<Vec<(AccessTarget, Visibility)>, Error> {
        let rows: Vec<(String, i64)> = query!(self.read(), c => sqlx::query_as(
            "select target, visibility from visibilities where target > $1 order by target limit $2")
            .bind(after).bind(limit).fetch_all(c).await)?;
        rows.into_iter().map(parse_visibility).collect()
    }

    /// The visibilities of a target and of its namespace, by target.
    pub(crate) async fn visibilities_of(
        &self,
        target: &AccessTarget,
    ) -> Result<Vec<(AccessTarget, Visibility)>, Error> {
        let namespace = match target {
            AccessTarget::Repository(repository) => Some(AccessTarget::namespace_of(repository)),
            AccessTarget::Namespace(_) => None,
        };
        let rows: Vec<(String, i64)> = query!(self.read(), c => sqlx::query_as(
            "select target, visibility from visibilities where target in ($1, $2) order by target")
            .bind(target.to_string()).bind(namespace.map(|target| target.to_string()))
            .fetch_all(c).await)?;
        rows.into_iter().map(parse_visibility).collect()
    }
}

fn parse_visibility((target, number): (String, i64)) -> Result<(AccessTarget, Visibility), Error> {
    Ok((parse_stored("target", &target)?, visibility(number)?))
}

impl Tx {
    pub(crate) async fn grant_put(
        &mut self,
        target: &AccessTarget,
        subject: Uuid,
        role: Role,
    ) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "insert into grants (target, subject, role, granted_at) values ($1, $2, $3, $4)
             on conflict (target, subject) do update set role = excluded.role, granted_at = excluded.granted_at")
            .bind(target.to_string()).bind(subject.to_string()).bind(role as i64).bind(now_ms())
            .execute(c).await.map(drop))?;
        Ok(())
    }

    /// Returns false if there is no such grant.
    pub(crate) async fn grant_delete(&mut self, target: &AccessTarget, subject: Uuid) -> Result<bool, Error> {
        let rows = query!(self.conn(), c => sqlx::query("delete from grants where target = $1 and subject = $2")
            .bind(target.to_string()).bind(subject.to_string())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Sets the visibility of a target. `None`: a repository has that of its namespace.
    pub(crate) async fn visibility_put(
        &mut self,
        target: &AccessTarget,
        visibility: Option<Visibility>,
    ) -> Result<(), Error> {
        let Some(visibility) = visibility else {
            query!(self.conn(), c => sqlx::query("delete from visibilities where target = $1")
                .bind(target.to_string()).execute(c).await.map(drop))?;
            return Ok(());
        };
        query!(self.conn(), c => sqlx::query(
            "insert into visibilities (target, visibility) values ($1, $2)
             on conflict (target) do update set visibility = excluded.visibility")
            .bind(target.to_string()).bind(visibility as i64).execute(c).await.map(drop))?;
        Ok(())
    }

    /// Makes every repository without a visibility of its own internal.
    pub(crate) async fn repositories_make_internal(&mut self) -> Result<(), Error> {
        query!(self.conn(), c => sqlx::query(
            "insert into visibilities (target, visibility) select name, cast($1 as bigint) from repositories where true
             on conflict (target) do nothing")
            .bind(Visibility::Internal as i64).execute(c).await.map(drop))?;
        Ok(())
    }
}
