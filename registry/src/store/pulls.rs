//! Counts of pulls: by repository and day in `pull_counts`, of all time in `repositories`, and of the last days in the rows of
//! the search, which lists sort by. They have no callers.

use lode_model::reference::Repository;
use sqlx::AssertSqlSafe;

use super::{Engine, Store, Tx, bigint, placeholders, query, size};
use crate::Error;
use crate::time::{DAY_MS, now_ms};

/// How many days, today included, make the recent pulls of a repository.
pub(crate) const RECENT_DAYS: i64 = 30;

/// How often a repository was pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PullTotals {
    /// In the last [`RECENT_DAYS`].
    pub(crate) recent: u64,
    pub(crate) all_time: u64,
}

impl PullTotals {
    pub(super) fn decode(recent: i64, all_time: i64) -> Result<PullTotals, Error> {
        Ok(PullTotals { recent: size(recent)?, all_time: size(all_time)? })
    }
}

/// The number of this day since 1970, in UTC.
pub(crate) fn today() -> i64 {
    now_ms().div_euclid(DAY_MS)
}

/// The recent pulls of the repository `name` as an SQL expression.
pub(super) fn recent_pulls(name: &str) -> String {
    let last_old_day = today() - RECENT_DAYS;
    format!(
        "(select cast(coalesce(sum(p.pulls), 0) as bigint) from pull_counts p
          where p.repository = {name} and p.day > {last_old_day})"
    )
}

impl Store {
    /// Adds pulls to the counts of today. Repositories that were deleted meanwhile are skipped.
    pub(crate) async fn pulls_add(&self, added: &[(Repository, u64)]) -> Result<(), Error> {
        let day = added.len() * 2 + 1;
        let rows = placeholders(added.len(), "(cast(? as text), cast(? as bigint))", 1);
        let added_rows = format!("with added (name, pulls) as (values {rows})");
        let (recent, name) = (recent_pulls("search.repository"), self.in_bytes("name"));
        let mut tx = self.begin().await?;
        // As a push does, so that neither deadlocks with the other.
        tx.repositories_lock(added.iter().map(|(repository, _)| repository)).await?;
        tx.pulls_write(
            format!(
                "{added_rows} insert into pull_counts (repository, day, pulls)
                 select r.name, cast(${day} as bigint), a.pulls from added a join repositories r on r.name = a.name
                 where 1 = 1
                 on conflict (repository, day) do update set pulls = pull_counts.pulls + excluded.pulls"
            ),
            added,
            Some(today()),
        )
        .await?;
        tx.pulls_write(
            format!(
                "{added_rows} update repositories
                 set pulls = pulls + (select a.pulls from added a where a.name = repositories.name)
                 where name in (select name from added)"
            ),
            added,
            None,
        )
        .await?;
        tx.pulls_write(
            format!(
                "{added_rows} update search set pulls = {recent} where repository in (select {name} from added)"
            ),
            added,
            None,
        )
        .await?;
        tx.commit().await
    }

    pub(crate) async fn pull_totals(&self, repository: &Repository) -> Result<PullTotals, Error> {
        let recent = recent_pulls("r.name");
        let text = AssertSqlSafe(format!(
            "select {recent} as recent, r.pulls from repositories r where r.name = $1"
        ));
        let row: Option<(i64, i64)> = query!(self.read(), c => sqlx::query_as(text)
            .bind(repository.as_str()).fetch_optional(c).await)?;
        row.map_or(Ok(PullTotals::default()), |(recent, all_time)| PullTotals::decode(recent, all_time))
    }

    /// The days after `after` with pulls of a repository, in their order.
    pub(crate) async fn pull_days(
        &self,
        repository: &Repository,
        after: i64,
    ) -> Result<Vec<(i64, u64)>, Error> {
        let rows: Vec<(i64, i64)> = query!(self.read(), c => sqlx::query_as(
            "select day, pulls from pull_counts where repository = $1 and day > $2 order by day")
            .bind(repository.as_str()).bind(after).fetch_all(c).await)?;
        rows.into_iter().map(|(day, pulls)| Ok((day, size(pulls)?))).collect()
    }

    /// Deletes counts of days before `day`, at most `limit`. Returns how many were deleted.
    pub(crate) async fn pulls_expire(&self, day: i64, limit: i64) -> Result<u64, Error> {
        let lock = match self.read() {
            Engine::Sqlite(_) => "",
            // The deletion of a repository holds the locks of its counts.
            Engine::Postgres(_) => "for update skip locked",
        };
        let text = AssertSqlSafe(format!(
            "delete from pull_counts where (repository, day) in
                 (select repository, day from pull_counts where day < $1 order by day limit $2 {lock})"
        ));
        Ok(query!(self.write(), c => sqlx::query(text)
            .bind(day).bind(limit).execute(c).await.map(|done| done.rows_affected()))?)
    }
}

impl Tx {
    /// Runs a statement whose first parameters are names and counts.
    async fn pulls_write(
        &mut self,
        text: String,
        added: &[(Repository, u64)],
        day: Option<i64>,
    ) -> Result<(), Error> {
        query!(self.conn(), c => {
            // The text contains only placeholders, one for each name and count: it is not worth a prepared statement.
            let mut query = sqlx::query(AssertSqlSafe(text)).persistent(false);
            for (repository, pulls) in added {
                query = query.bind(repository.as_str()).bind(bigint(*pulls));
            }
            if let Some(day) = day {
                query = query.bind(day);
            }
            query.execute(c).await.map(drop)
        })?;
        Ok(())
    }
}
