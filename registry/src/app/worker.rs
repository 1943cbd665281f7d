//! A worker as it reports itself: its registration, its devices, and the models on it.

use std::time::Duration;

use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::reference::{Name, Repository};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Error;
use crate::store::WorkerRow;

/// A worker that was not seen for this long gets no more requests.
pub(super) const ABSENT_AFTER: Duration = Duration::from_secs(10);

/// After this long a worker is deleted; its next heartbeat makes it register again.
pub(super) const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// The name under which the secrets of workers are encrypted.
pub(super) const WORKER_SECRET: &str = "worker-secret";

/// Distinguishes the credentials of workers from the tokens of accounts.
pub(crate) const WORKER_CREDENTIAL_PREFIX: &str = "lode-worker-";

/// A device, as its worker reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = WorkerLoadedModel)]
pub struct LoadedModel {
    pub repository: Repository,
    pub digest: Digest,
    #[serde(default)]
    pub size_bytes: u64,
    /// How many requests it computes at the same time; others wait. 0 if the worker does not report it.
    #[serde(default)]
    pub num_parallel: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl LoadedModel {
    /// The name that it was loaded by, such as `team/mini:q4`; without a tag if the worker does not report it.
    pub(crate) fn name(&self) -> String {
        let name = self.more.get("name").and_then(Value::as_str);
        name.map_or_else(|| self.repository.to_string(), str::to_owned)
    }
}

/// The registration of a worker.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct WorkerAnnouncement {
    /// The URL at which the gateway reaches it.
    #[schema(value_type = String, format = "uri")]
    pub advertise: Url,
    #[serde(default)]
    pub devices: Vec<Device>,
    #[serde(default)]
    pub version: String,
    /// The only models that it serves, loaded when it joins and kept loaded; empty: all models.
    #[serde(default)]
    pub reserved_for: Vec<Name>,
}

/// A worker's regular report.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct Heartbeat {
    pub devices: Vec<Device>,
    pub loaded: Vec<LoadedModel>,
    /// Digests of the manifests whose blobs it has on disk.
    pub cached: Vec<Digest>,
}

/// The response to a worker's report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct HeartbeatReply {
    /// It gets no new requests, and unloads its models when they are idle.
    pub draining: bool,
    /// The models that it is reserved for, as their names resolve now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_for: Vec<ReservedModel>,
}

/// A model that a worker loads before the first request for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReservedModel {
    pub name: Name,
    /// Null if there is no such manifest.
    pub digest: Option<Digest>,
}

/// The response to a registration.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Registration {
    pub id: Uuid,
    /// What the worker sends with its heartbeats and when it leaves. Only its digest is stored.
    #[serde(serialize_with = "expose")]
    #[schema(value_type = String)]
    pub credential: Secret,
    /// What the gateway sends with every request to that worker.
    #[serde(serialize_with = "expose")]
    #[schema(value_type = String)]
    pub secret: Secret,
    pub heartbeat_ms: u64,
}

fn expose<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose())
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
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Worker {
    pub id: Uuid,
    #[schema(value_type = String, format = "uri")]
    pub advertise: Url,
    pub version: String,
    pub devices: Vec<Device>,
    pub loaded: Vec<LoadedModel>,
    pub cached: Vec<Digest>,
    /// The only models that it serves, loaded when it joins and kept loaded; empty: all models.
    pub reserved_for: Vec<Name>,
    /// Milliseconds since 1970.
    pub registered_at: i64,
    /// The last heartbeat, in milliseconds since 1970.
    pub seen_at: i64,
    /// It gets no new requests, because an administrator drains it.
    pub draining: bool,
    #[serde(skip)]
    pub(crate) secret: Secret,
    /// The digest of its credential.
    #[serde(skip)]
    pub(crate) credential: Option<Digest>,
}

impl Worker {
    /// How many requests for a model that it has loaded it computes at the same time; `None` if it is not
    /// loaded or not known.
    pub(crate) fn max_requests(&self, digest: &Digest) -> Option<u64> {
        let model = self.loaded.iter().find(|model| model.digest == *digest)?;
        (model.num_parallel > 0).then_some(model.num_parallel)
    }
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
            reserved_for: from_json("worker reservations", &row.reserved_for)?,
            registered_at: row.registered_at,
            seen_at: 0,
            draining: row.draining,
            secret: row.secret,
            credential: row.credential,
        })
    }
}
