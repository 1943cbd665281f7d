//! Workers as they last showed themselves; any replica reads them to route a request.
//! What a worker says of itself is kept as JSON, for nothing here asks about it.

use uuid::Uuid;

use super::{Store, now_ms, on, parsed};
use crate::Error;

#[derive(Clone, Debug)]
pub(crate) struct WorkerRow {
    pub(crate) id: Uuid,
    pub(crate) secret: String,
    pub(crate) advertise: String,
    pub(crate) version: String,
    pub(crate) devices: String,
    pub(crate) loaded: String,
    pub(crate) cached: String,
    pub(crate) registered_at: i64,
    pub(crate) seen_at: i64,
}

impl Store {
    /// Adds a worker, in place of those that answer at the same address: it was restarted.
    pub(crate) async fn worker_insert(&self, row: &WorkerRow) -> Result<(), Error> {
        let mut tx = self.begin().await?;
        on!(tx.conn(), c => sqlx::query("delete from workers where advertise = $1")
            .bind(&row.advertise).execute(c).await.map(drop))?;
        on!(tx.conn(), c => sqlx::query(
            "insert into workers (id, secret, advertise, version, devices, loaded, cached, registered_at, seen_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
            .bind(row.id.to_string()).bind(&row.secret).bind(&row.advertise).bind(&row.version)
            .bind(&row.devices).bind(&row.loaded).bind(&row.cached).bind(row.registered_at).bind(row.seen_at)
            .execute(c).await.map(drop))?;
        tx.commit().await
    }

    /// Notes a heartbeat. False if the worker is not known, and has to register again.
    pub(crate) async fn worker_update(
        &self,
        id: Uuid,
        devices: &str,
        loaded: &str,
        cached: &str,
    ) -> Result<bool, Error> {
        let rows = on!(self.write(), c => sqlx::query(
            "update workers set devices = $2, loaded = $3, cached = $4, seen_at = $5 where id = $1")
            .bind(id.to_string()).bind(devices).bind(loaded).bind(cached).bind(now_ms())
            .execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    pub(crate) async fn worker_delete(&self, id: Uuid) -> Result<bool, Error> {
        let rows = on!(self.write(), c => sqlx::query("delete from workers where id = $1")
            .bind(id.to_string()).execute(c).await.map(|r| r.rows_affected()))?;
        Ok(rows > 0)
    }

    /// Forgets workers that were last seen before `cutoff`.
    pub(crate) async fn worker_expire(&self, cutoff: i64) -> Result<(), Error> {
        on!(self.write(), c => sqlx::query("delete from workers where seen_at < $1")
            .bind(cutoff).execute(c).await.map(drop))?;
        Ok(())
    }

    /// The workers seen since `cutoff`, oldest registration first.
    pub(crate) async fn worker_list(&self, cutoff: i64) -> Result<Vec<WorkerRow>, Error> {
        type Row = (String, String, String, String, String, String, String, i64, i64);
        let rows: Vec<Row> = on!(self.read(), c => sqlx::query_as(
            "select id, secret, advertise, version, devices, loaded, cached, registered_at, seen_at
             from workers where seen_at >= $1 order by registered_at, id")
            .bind(cutoff).fetch_all(c).await)?;
        let read =
            |(id, secret, advertise, version, devices, loaded, cached, registered_at, seen_at): Row| {
                let id = parsed("worker", &id)?;
                Ok(WorkerRow {
                    id,
                    secret,
                    advertise,
                    version,
                    devices,
                    loaded,
                    cached,
                    registered_at,
                    seen_at,
                })
            };
        rows.into_iter().map(read).collect()
    }
}
