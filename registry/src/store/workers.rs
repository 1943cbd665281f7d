//! Workers as they last reported; any replica reads them to route a request. Only the database's clock
//! decides whether a worker is attached, because the clocks of replicas differ.

use std::time::Duration;

use lode_client::Secret;
use lode_model::digest::Digest;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Store, Tx, parse_stored, query};
use crate::Error;
use crate::time::millis;

/// A worker's report. The lists are JSON, because no query filters by them.
#[derive(Clone, Debug)]
pub(crate) struct WorkerRow {
    pub(crate) id: Uuid,
    /// What the gateway sends to it.
    pub(crate) secret: Secret,
    /// The digest of its credential.
    pub(crate) credential: Option<Digest>,
    pub(crate) advertise: String,
    pub(crate) version: String,
    pub(crate) devices: String,
    pub(crate) loaded: String,
    pub(crate) cached: String,
    pub(crate) reserved_for: String,
    pub(crate) registered_at: i64,
    pub(crate) inventory: i64,
    /// It gets no new requests.
    pub(crate) draining: bool,
}

/// What a worker has, as JSON.
#[derive(Clone, Copy)]
pub(crate) struct WorkerInventory<'a> {
    pub(crate) devices: &'a str,
    pub(crate) loaded: &'a str,
    pub(crate) cached: &'a str,
}

/// The columns of an attached worker that change with each heartbeat, and the number of its inventory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerState {
    pub(crate) id: Uuid,
    pub(crate) inventory: i64,
    pub(crate) seen_at: i64,
}

#[derive(sqlx_macros::FromRow)]
struct WorkerColumns {
    id: String,
    secret: String,
    credential: Option<String>,
    advertise: String,
    version: String,
    devices: String,
    loaded: String,
    cached: String,
    reserved_for: String,
    registered_at: i64,
    inventory: i64,
    draining: i64,
}

impl TryFrom<WorkerColumns> for WorkerRow {
    type Error = Error;

    fn try_from(row: WorkerColumns) -> Result<WorkerRow, Error> {
        Ok(WorkerRow {
            id: parse_stored("worker", &row.id)?,
            secret: Secret::new(row.secret),
            credential: row.credential.map(|text| parse_stored("worker credential", &text)).transpose()?,
            advertise: row.advertise,
            version: row.version,
            devices: row.devices,
            loaded: row.loaded,
            cached: row.cached,
            reserved_for: row.reserved_for,
            registered_at: row.registered_at,
            inventory: row.inventory,
            draining: row.draining != 0,
        })
    }
}

#[derive(sqlx_macros::FromRow)]
struct WorkerStateColumns {
    id: String,
    inventory: i64,
    seen_at: i64,
}

impl TryFrom<WorkerStateColumns> for WorkerState {
    type Error = Error;

    fn try_from(row: WorkerStateColumns) -> Result<WorkerState, Error> {
        let id = parse_stored("worker", &row.id)?;
        Ok(WorkerState { id, inventory: row.inventory, seen_at: row.seen_at })
    }
}

fn id_list(ids: &[Uuid]) -> String {
    serde_json::Value::from_iter(ids.iter().map(Uuid::to_string)).to_string()
}

impl Store {
    /// Records the inventory of a worker. Returns false if no worker has this id and credential.
    pub(crate) async fn worker_update(
        &self,
        id: Uuid,
        credential: &Digest,
        inventory: WorkerInventory<'_>,
    ) -> Result<bool, Error> {
        let WorkerInventory { devices, loaded, cached } = inventory;
        let text = AssertSqlSafe(format!(
            "update workers set devices = $2, loaded = $3, cached = $4, inventory = inventory + 1, seen_at = {}
             where id = $1 and credential = $5",
            self.clock()
        ));
        let rows = query!(self.write(), c => sqlx::query(text)
            .bind(id.to_string()).bind(devices).bind(loaded).bind(cached).bind(credential.as_str())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Records heartbeats of workers in one statement. Returns the number of known workers.
    pub(crate) async fn workers_seen(&self, ids: &[Uuid]) -> Result<u64, Error> {
        let text = AssertSqlSafe(format!(
            "update workers set seen_at = {} where id in (select value from json_each($1))",
            self.clock()
        ));
        Ok(query!(self.write(), c => sqlx::query(text).bind(id_list(ids))
            .execute(c).await.map(|r| r.rows_affected()))?)
    }

    /// Deletes workers that were not seen for `unseen`, whose credentials end.
    pub(crate) async fn worker_expire(&self, unseen: Duration) -> Result<(), Error> {
        let text = AssertSqlSafe(format!(
            "delete from workers where seen_at < {} - cast($1 as bigint)",
            self.clock()
        ));
        let mut tx = self.begin().await?;
        let rows = query!(tx.conn(), c => sqlx::query(text).bind(millis(unseen))
            .execute(c).await.map(|r| r.rows_affected()))?;
        if rows > 0 {
            tx.access_changed().await?;
        }
        tx.commit().await
    }

    /// The workers seen within `within`, oldest registration first.
    pub(crate) async fn worker_states(&self, within: Duration) -> Result<Vec<WorkerState>, Error> {
        let text = AssertSqlSafe(format!(
            "select id, inventory, seen_at from workers where seen_at >= {} - cast($1 as bigint)
             order by registered_at, id",
            self.clock()
        ));
        let rows: Vec<WorkerStateColumns> =
            query!(self.read(), c => sqlx::query_as(text).bind(millis(within)).fetch_all(c).await)?;
        rows.into_iter().map(WorkerState::try_from).collect()
    }

    pub(crate) async fn worker_find_by_credential(&self, credential: &Digest) -> Result<Option<Uuid>, Error> {
        let row: Option<(String,)> = query!(self.read(), c => sqlx::query_as("select id from workers where credential = $1")
            .bind(credential.as_str()).fetch_optional(c).await)?;
        row.map(|(id,)| parse_stored("worker", &id)).transpose()
    }

    /// The rows of those of these workers that exist, in any order.
    pub(crate) async fn worker_rows(&self, ids: &[Uuid]) -> Result<Vec<WorkerRow>, Error> {
        let rows: Vec<WorkerColumns> = query!(self.read(), c => sqlx::query_as(
            "select id, secret, credential, advertise, version, devices, loaded, cached, reserved_for, registered_at,
                 inventory, draining
             from workers where id in (select value from json_each($1))")
            .bind(id_list(ids)).fetch_all(c).await)?;
        rows.into_iter().map(WorkerRow::try_from).collect()
    }
}

impl Tx {
    /// Deletes a worker, whose credential ends. `credential`: only if it is the worker's. Returns false if there is no
    /// such worker.
    pub(crate) async fn worker_delete(
        &mut self,
        id: Uuid,
        credential: Option<&Digest>,
    ) -> Result<bool, Error> {
        self.access_changed().await?;
        let rows = query!(self.conn(), c => sqlx::query(
            "delete from workers where id = $1 and (cast($2 as text) is null or credential = $2)")
            .bind(id.to_string()).bind(credential.map(Digest::as_str))
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Sets whether a worker is drained. Returns false if there is no such worker.
    pub(crate) async fn worker_drain(&mut self, id: Uuid, draining: bool) -> Result<bool, Error> {
        // Replicas read a row again when its inventory has another number.
        let rows = query!(self.conn(), c => sqlx::query(
            "update workers set draining = cast($2 as bigint), inventory = inventory + 1 where id = $1")
            .bind(id.to_string()).bind(i64::from(draining))
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Adds a worker, seen now. It replaces workers at the same address, which were restarted.
    pub(crate) async fn worker_insert(&mut self, row: &WorkerRow) -> Result<(), Error> {
        let text = AssertSqlSafe(format!(
            "insert into workers (id, secret, advertise, version, devices, loaded, cached, credential, reserved_for,
                 registered_at, seen_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, {now}, {now})",
            now = self.0.clock()
        ));
        let replaced = query!(self.conn(), c => sqlx::query("delete from workers where advertise = $1")
            .bind(&row.advertise).execute(c).await.map(|r| r.rows_affected()))?;
        if replaced > 0 {
            self.access_changed().await?;
        }
        query!(self.conn(), c => sqlx::query(text)
            .bind(row.id.to_string()).bind(row.secret.expose()).bind(&row.advertise).bind(&row.version)
            .bind(&row.devices).bind(&row.loaded).bind(&row.cached)
            .bind(row.credential.as_ref().map(Digest::as_str)).bind(&row.reserved_for)
            .execute(c).await.map(drop))?;
        Ok(())
    }
}
