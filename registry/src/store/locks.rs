//! The order in which transactions lock, so that they wait for each other and never in a circle: blobs (several of them in
//! digest order), then the repository, then what is in it. And the turn that one of all replicas has.

use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Engine, Store, Tx, digest_list, on};
use crate::Error;

/// How often a turn that another replica has is asked for.
const TURN_POLL: Duration = Duration::from_millis(100);

/// The turn of one among all replicas; dropping it lets the next one in. Between processes on SQLite there is nothing to
/// agree on: a data folder has one.
pub(crate) struct Turn(#[allow(dead_code, reason = "held, not read")] Option<Tx>);

impl Store {
    /// The turn of that name, unless another replica has it. It goes with the connection that holds it, so what is done in a
    /// turn must be safe to do twice.
    pub(crate) async fn turn_try(&self, name: &str) -> Result<Option<Turn>, Error> {
        if matches!(self.0, Engine::Sqlite(_)) {
            return Ok(Some(Turn(None)));
        }
        let mut tx = self.begin().await?;
        let (ours,): (bool,) = on!(tx.conn(), c => sqlx::query_as(
            "select pg_try_advisory_xact_lock(hashtext($1), hashtext(current_schema()))")
            .bind(name).fetch_one(c).await)?;
        match ours {
            true => Ok(Some(Turn(Some(tx)))),
            false => tx.rollback().await.map(|()| None),
        }
    }

    /// The turn of that name, after whoever has it. Nobody keeps a connection while waiting.
    pub(crate) async fn turn(&self, name: &str) -> Result<Turn, Error> {
        loop {
            match self.turn_try(name).await? {
                Some(turn) => return Ok(turn),
                None => tokio::time::sleep(TURN_POLL).await,
            }
        }
    }
}

impl Tx {
    /// Can rows be locked? On SQLite the transaction is the one writer, and there is nothing to lock.
    pub(super) fn locks_rows(&self) -> bool {
        matches!(self.0, Engine::Postgres(_))
    }

    /// Locks those of these blobs that nobody is at, for the collection: it does not wait, and its next run looks again.
    /// Returns them as a list parameter.
    pub(crate) async fn blobs_take(
        &mut self,
        digests: impl IntoIterator<Item = &Digest>,
    ) -> Result<String, Error> {
        let list = digest_list(digests);
        if !self.locks_rows() {
            return Ok(list);
        }
        let locked: Vec<(String,)> = on!(self.conn(), c => sqlx::query_as(
            "select digest from blobs where digest in (select value from json_each($1))
             order by digest for update skip locked")
            .bind(list).fetch_all(c).await)?;
        Ok(serde_json::Value::from_iter(locked.into_iter().map(|(digest,)| digest)).to_string())
    }

    /// Locks a repository's row, as everyone does who changes what is in it.
    pub(crate) async fn repository_lock(&mut self, repository: &Repository) -> Result<(), Error> {
        on!(self.conn(), c => sqlx::query("update repositories set name = name where name = $1")
            .bind(repository.as_str()).execute(c).await.map(drop))?;
        Ok(())
    }
}
