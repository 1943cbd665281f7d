//! The order in which transactions lock, which prevents deadlocks: blobs (several in digest order), then the
//! repository, then its content. Also locks that one of all replicas holds.

use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;

use super::{Engine, Store, Tx, digest_list, measured, postgres, query};
use crate::Error;
use crate::time::now_ms;

/// How often a lock of another replica is retried.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// A lock that one of all replicas holds; dropping it releases it. On SQLite it locks nothing: a data folder
/// has one process.
pub(crate) struct ReplicaLock(
    #[allow(dead_code, reason = "held, not read")] Option<PoolConnection<Postgres>>,
);

impl Store {
    /// Takes the lock of that name, unless another replica holds it. The lock is lost with its connection, so
    /// work under it must be safe to do twice.
    pub(crate) async fn replica_lock_try(&self, name: &str) -> Result<Option<ReplicaLock>, Error> {
        let Engine::Postgres(pool) = &self.0 else { return Ok(Some(ReplicaLock(None))) };
        // A session lock, not a transaction lock: Postgres ends idle transactions, and the lock may be held
        // for hours. The pool releases session locks of a returned connection.
        let mut connection = postgres::with_timeout(pool.acquire()).await?;
        let query = sqlx::query_as("select pg_try_advisory_lock(hashtext($1), hashtext(current_schema()))")
            .bind(name)
            .fetch_one(&mut *connection);
        let (ours,): (bool,) = measured!(postgres::with_timeout(query).await)?;
        Ok(ours.then_some(ReplicaLock(Some(connection))))
    }

    /// Waits for the lock of that name. No connection is held while waiting.
    pub(crate) async fn replica_lock(&self, name: &str) -> Result<ReplicaLock, Error> {
        loop {
            match self.replica_lock_try(name).await? {
                Some(turn) => return Ok(turn),
                None => tokio::time::sleep(LOCK_POLL).await,
            }
        }
    }
}

impl Tx {
    /// Whether rows can be locked. On SQLite the transaction is the only writer, so nothing needs a lock.
    pub(super) fn locks_rows(&self) -> bool {
        matches!(self.0, Engine::Postgres(_))
    }

    /// Locks those of these blobs that no other transaction has locked, for the collection. It does not wait;
    /// its next run tries the others again. Returns the locked ones as a list parameter.
    pub(crate) async fn blobs_lock_free(
        &mut self,
        digests: impl IntoIterator<Item = &Digest>,
    ) -> Result<String, Error> {
        let list = digest_list(digests);
        if !self.locks_rows() {
            return Ok(list);
        }
        let locked: Vec<(String,)> = query!(self.conn(), c => sqlx::query_as(
            "select digest from blobs where digest in (select value from json_each($1))
             order by digest for update skip locked")
            .bind(list).fetch_all(c).await)?;
        Ok(serde_json::Value::from_iter(locked.into_iter().map(|(digest,)| digest)).to_string())
    }

    /// Locks a repository, if it exists: changes of its manifests and tags are serialised. Links can still be
    /// created.
    pub(crate) async fn repository_lock(&mut self, repository: &Repository) -> Result<(), Error> {
        self.repositories_lock([repository]).await
    }

    /// Like `repository_lock`, for several repositories.
    pub(crate) async fn repositories_lock(
        &mut self,
        repositories: impl IntoIterator<Item = &Repository>,
    ) -> Result<(), Error> {
        if self.locks_rows() {
            // The row is not written: each write would leave a dead version of it.
            let names: Vec<&str> = repositories.into_iter().map(Repository::as_str).collect();
            query!(self.conn(), c => sqlx::query(
                "select name from repositories where name in (select value from json_each($1))
                 order by name for no key update")
                .bind(serde_json::Value::from(names).to_string()).execute(c).await.map(drop))?;
        }
        Ok(())
    }

    /// Locks a repository, and creates it if there is none.
    pub(crate) async fn repository_lock_or_create(&mut self, repository: &Repository) -> Result<(), Error> {
        self.repository_lock_shared(repository).await?;
        self.repository_lock(repository).await
    }

    /// Creates a repository if there is none, and prevents the collection from deleting it as empty until the
    /// transaction ends. Any number of transactions may do so at once.
    pub(super) async fn repository_lock_shared(&mut self, repository: &Repository) -> Result<(), Error> {
        loop {
            if self.locks_rows() {
                let kept: Option<(String,)> = query!(self.conn(), c => sqlx::query_as(
                    "select name from repositories where name = $1 for key share")
                    .bind(repository.as_str()).fetch_optional(c).await)?;
                if kept.is_some() {
                    return Ok(());
                }
            }
            query!(self.conn(), c => sqlx::query(
                "insert into repositories (name, created_at) values ($1, $2) on conflict (name) do nothing")
                .bind(repository.as_str()).bind(now_ms()).execute(c).await.map(drop))?;
            if !self.locks_rows() {
                return Ok(());
            }
        }
    }
}
