//! The patterns of protected tags, by repository or namespace.

use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::auth::AccessTarget;

impl Store {
    /// The patterns of these targets, in order.
    pub(crate) async fn tag_rules_find(&self, targets: &[&AccessTarget]) -> Result<Vec<String>, Error> {
        let list = serde_json::Value::from_iter(targets.iter().map(ToString::to_string)).to_string();
        let rows: Vec<(String,)> = query!(self.read(), c => sqlx::query_as(
            "select distinct pattern from tag_rules where target in (select value from json_each($1)) order by pattern")
            .bind(list).fetch_all(c).await)?;
        Ok(rows.into_iter().map(|(pattern,)| pattern).collect())
    }

    /// Patterns with their targets after a target and a pattern, in their order, at most `limit`; only those that apply
    /// to one target if it is given.
    pub(crate) async fn tag_rules_list(
        &self,
        target: Option<&AccessTarget>,
        after: (&str, &str),
        limit: i64,
    ) -> Result<Vec<(AccessTarget, String)>, Error> {
        let own = target.map(AccessTarget::to_string).unwrap_or_default();
        let namespace = match target {
            Some(AccessTarget::Repository(repository)) => AccessTarget::namespace_of(repository).to_string(),
            _ => own.clone(),
        };
        let rows: Vec<(String, String)> = query!(self.read(), c => sqlx::query_as(
            "select target, pattern from tag_rules
             where (target, pattern) > ($1, $2) and ($4 = '' or target in ($4, $5))
             order by target, pattern limit $3")
            .bind(after.0).bind(after.1).bind(limit).bind(&own[..]).bind(&namespace[..]).fetch_all(c).await)?;
        rows.into_iter().map(|(target, pattern)| Ok((parse_stored("target", &target)?, pattern))).collect()
    }
}

impl Tx {
    /// The patterns of a target, in order.
    pub(crate) async fn tag_rules_of(&mut self, target: &AccessTarget) -> Result<Vec<String>, Error> {
        let rows: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "select pattern from tag_rules where target = $1 order by pattern")
            .bind(target.to_string()).fetch_all(c).await)?;
        Ok(rows.into_iter().map(|(pattern,)| pattern).collect())
    }

    /// Replaces the patterns of a target.
    pub(crate) async fn tag_rules_put(
        &mut self,
        target: &AccessTarget,
        patterns: &[String],
    ) -> Result<(), Error> {
        let target = target.to_string();
        query!(self.conn(), c => sqlx::query("delete from tag_rules where target = $1")
            .bind(&target[..]).execute(c).await.map(drop))?;
        for pattern in patterns {
            query!(self.conn(), c => sqlx::query(
                "insert into tag_rules (target, pattern) values ($1, $2) on conflict (target, pattern) do nothing")
                .bind(&target[..]).bind(&pattern[..]).execute(c).await.map(drop))?;
        }
        Ok(())
    }
}
