//! Workers: permission to join, their reports, and the list of attached ones. Registrations and heartbeats
//! are rows, so that any replica can route to any worker.

use std::sync::Arc;
use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;
use uuid::Uuid;

use super::Registry;
use super::worker_table::{self, WorkerTable};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::store::WorkerRow;

/// How often a worker sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// A worker that was not seen for this long gets no more requests.
pub(super) const ABSENT_AFTER: Duration = Duration::from_secs(10);

/// After this long a worker is deleted; its next heartbeat makes it register again.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// A device, as its worker reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// `cpu`, `cuda`.
    pub kind: String,
    pub name: String,
    pub memory_bytes: u64,
    pub free_bytes: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// A model that a worker has loaded. Other fields of the report are passed on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadedModel {
    pub repository: Repository,
    pub digest: Digest,
    #[serde(default)]
    pub size_bytes: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// The registration of a worker.
#[derive(Clone, Debug, Deserialize)]
pub struct WorkerAnnouncement {
    /// The URL at which the gateway reaches it.
    pub advertise: Url,
    #[serde(default)]
    pub devices: Vec<Device>,
    #[serde(default)]
    pub version: String,
}

/// A worker's regular report.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Heartbeat {
    pub devices: Vec<Device>,
    pub loaded: Vec<LoadedModel>,
    /// Digests of the manifests whose blobs it has on disk.
    pub cached: Vec<Digest>,
}

/// The response to a registration. The gateway sends `secret` with every request to that worker.
#[derive(Clone, Debug, Serialize)]
pub struct Registration {
    pub id: Uuid,
    pub secret: String,
    pub heartbeat_ms: u64,
}

/// The evidence that a worker may join.
#[derive(Clone, Copy, Debug)]
pub struct JoinProof<'a> {
    /// The shared secret, if it sent one.
    pub token: Option<&'a str>,
    /// Whether it connects from this machine.
    pub is_local: bool,
}

/// An attached worker.
#[derive(Clone, Debug, Serialize)]
pub struct Worker {
    pub id: Uuid,
    pub advertise: Url,
    pub version: String,
    pub devices: Vec<Device>,
    pub loaded: Vec<LoadedModel>,
    pub cached: Vec<Digest>,
    /// Milliseconds since 1970.
    pub registered_at: i64,
    pub seen_at: i64,
    #[serde(skip)]
    pub(crate) secret: String,
}

impl Registry {
    pub async fn worker_register(
        &self,
        caller: &Caller,
        proof: JoinProof<'_>,
        announcement: WorkerAnnouncement,
    ) -> Result<Registration, Error> {
        allow(caller, Action::Join, Target::Workers)?;
        self.worker_may_join(proof)?;
        let id = Uuid::new_v4();
        // Two random UUIDs make a secret of 244 bits.
        let secret = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        self.store()
            .worker_insert(&WorkerRow {
                id,
                secret: secret.clone(),
                advertise: announcement.advertise.into(),
                version: announcement.version,
                devices: to_json(&announcement.devices),
                loaded: "[]".to_owned(),
                cached: "[]".to_owned(),
                registered_at: 0,
                inventory: 0,
            })
            .await?;
        self.workers.changed();
        Ok(Registration { id, secret, heartbeat_ms: HEARTBEAT.as_millis() as u64 })
    }

    /// Returns false if the worker is unknown and has to register again.
    pub async fn worker_heartbeat(
        &self,
        caller: &Caller,
        proof: JoinProof<'_>,
        id: Uuid,
        heartbeat: &Heartbeat,
    ) -> Result<bool, Error> {
        allow(caller, Action::Join, Target::Workers)?;
        self.worker_may_join(proof)?;
        // 1. Without changes, the heartbeat is written with those of other workers.
        let table = self.workers_attached().await?;
        if table.find(id).is_some_and(|worker| !worker_table::is_changed(worker, heartbeat)) {
            self.workers.beat(id);
            return Ok(true);
        }
        // 2. Otherwise write its new inventory.
        let (devices, loaded, cached) =
            (to_json(&heartbeat.devices), to_json(&heartbeat.loaded), to_json(&heartbeat.cached));
        let known = self.store().worker_update(id, &devices, &loaded, &cached).await?;
        self.workers.changed();
        Ok(known)
    }

    pub async fn worker_leave(&self, caller: &Caller, proof: JoinProof<'_>, id: Uuid) -> Result<bool, Error> {
        allow(caller, Action::Join, Target::Workers)?;
        self.worker_may_join(proof)?;
        let known = self.store().worker_delete(id).await?;
        self.workers.changed();
        Ok(known)
    }

    /// The attached workers.
    pub async fn worker_list(&self, caller: &Caller) -> Result<Vec<Worker>, Error> {
        allow(caller, Action::List, Target::Workers)?;
        Ok(self.workers_attached().await?.all())
    }

    /// The attached workers, at most a second old.
    pub(crate) async fn workers_attached(&self) -> Result<Arc<WorkerTable>, Error> {
        self.workers.table(self.store()).await
    }

    /// Which of the worker and the model that this process waits for are still missing.
    pub(super) async fn list_missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        // A worker of an earlier run may still be listed; it does not count.
        let is_new = |worker: &Worker| worker.registered_at >= self.opened_at;
        if self.config().wait_for_worker
            && !matches!(self.worker_list(&Caller::Internal).await, Ok(list) if list.iter().any(is_new))
        {
            missing.push("no worker is attached yet".to_owned());
        }
        if let Some(model) = &self.config().wait_for_model
            && !matches!(self.model_resolve_setting(model).await, Ok(Some(_)))
        {
            missing.push(format!("model {model} is not imported yet"));
        }
        missing
    }

    /// With a shared secret, every worker that has it may join; without one, only workers on this machine.
    fn worker_may_join(&self, proof: JoinProof<'_>) -> Result<(), Error> {
        match &self.config().worker_token {
            Some(expected) if proof.token.is_some_and(|token| eq_constant_time(token, expected.expose())) => {
                Ok(())
            }
            Some(_) => Err(Error::Unauthorized),
            None if proof.is_local => Ok(()),
            None => Err(Error::Denied),
        }
    }
}

/// Compares in constant time, which does not reveal the position of the first difference.
fn eq_constant_time(a: &str, b: &str) -> bool {
    let different = a.bytes().zip(b.bytes()).fold(0, |seen, (a, b)| seen | (a ^ b));
    a.len() == b.len() && std::hint::black_box(different) == 0
}

fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("data that was parsed from JSON serialises to JSON")
}

fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|_| Error::Corrupt { what, value: text.to_owned() })
}

impl TryFrom<WorkerRow> for Worker {
    type Error = Error;

    fn try_from(row: WorkerRow) -> Result<Worker, Error> {
        Ok(Worker {
            id: row.id,
            advertise: row
                .advertise
                .parse()
                .map_err(|_| Error::Corrupt { what: "worker address", value: row.advertise })?,
            version: row.version,
            devices: from_json("worker devices", &row.devices)?,
            loaded: from_json("worker models", &row.loaded)?,
            cached: from_json("worker cache", &row.cached)?,
            registered_at: row.registered_at,
            seen_at: 0,
            secret: row.secret,
        })
    }
}
