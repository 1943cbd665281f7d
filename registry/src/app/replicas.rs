//! The servers that share a Postgres database. Each reports while it runs, so that operators see all of them. A server
//! with SQLite is alone, and a read-only one writes nothing, so neither reports.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::Registry;
use crate::Error;
use crate::error::chain;
use crate::store::ReplicaRow;
use crate::time::rfc3339;

/// How long after its last report a replica counts as absent: three reports are missing.
const ABSENT_AFTER: Duration = Duration::from_secs(45);
/// How long an absent replica is listed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// How long a stopping server tries to remove its report.
const REMOVE_TIME: Duration = Duration::from_secs(2);

/// A server that shares the database.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReplicaStatus {
    /// Host name and port.
    pub address: String,
    /// `ready`, `not ready` or `stopping`; `absent` if it has not reported for 45 seconds.
    pub state: String,
    pub version: String,
    #[schema(format = DateTime)]
    pub started_at: String,
    /// The last report.
    #[schema(format = DateTime)]
    pub seen_at: String,
    /// Whether it is the server that responds.
    pub this_server: bool,
}

impl Registry {
    fn reports_as_replica(&self) -> bool {
        self.store.is_shared() && !self.config.read_only
    }

    /// Records that this server runs.
    pub(super) async fn report_replica(&self, is_ready: bool) {
        if !self.reports_as_replica() {
            return;
        }
        let state = match is_ready {
            true => "ready",
            false if self.is_shutting_down() => "stopping",
            false => "not ready",
        };
        let (host, version) = (host_name(), env!("CARGO_PKG_VERSION"));
        let address = match self.config.listen.port() {
            0 => host,
            port => format!("{host}:{port}"),
        };
        let limits = (ABSENT_AFTER, FORGOTTEN_AFTER);
        let reported = self.store.replica_report(&self.jobs.holder, &address, version, state, limits).await;
        if let Err(error) = reported {
            tracing::debug!(error = chain(&error), "failed to report this server to the others; will retry");
        }
    }

    /// Removes the report of this server, which stops.
    pub(super) async fn remove_replica(&self) {
        if self.reports_as_replica() {
            // Otherwise it counts as absent.
            let _ = tokio::time::timeout(REMOVE_TIME, self.store.replica_remove(&self.jobs.holder)).await;
        }
    }

    /// The servers that share the database; none with SQLite.
    pub(super) async fn replica_list(&self) -> Result<Vec<ReplicaStatus>, Error> {
        if !self.store.is_shared() {
            return Ok(Vec::new());
        }
        let status = |row: ReplicaRow| ReplicaStatus {
            state: match row.age_ms > ABSENT_AFTER.as_millis() as i64 {
                true => "absent".to_owned(),
                false => row.state,
            },
            address: row.address,
            version: row.version,
            started_at: rfc3339(row.started_at),
            seen_at: rfc3339(row.seen_at),
            this_server: row.id == self.jobs.holder,
        };
        Ok(self.store.replicas().await?.into_iter().map(status).collect())
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
