//! Workers: permission to join, their reports, and the list of attached ones. Registrations and heartbeats
//! are rows, so that any replica can route to any worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::reference::{Name, Repository};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Registry;
use super::sign_in_cache::CredentialKey;
use super::worker::{
    FORGOTTEN_AFTER, Heartbeat, HeartbeatReply, JoinProof, Registration, ReservedModel,
    WORKER_CREDENTIAL_PREFIX, WORKER_SECRET, Worker, WorkerAnnouncement,
};
use super::worker_table::{self, WorkerTable};
use crate::Error;
use crate::auth::{Action, Caller, Identity, Target};
use crate::error::chain;
use crate::store::{WorkerInventory, WorkerRow};

/// How often a worker sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How often heartbeats are written.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How often workers that were not seen for long are deleted.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(60);
/// The most loaded models that are listed.
const MAX_LOADED: usize = 20;

/// A model that some worker has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadedOnWorkers {
    /// By which a worker loaded it.
    pub(crate) name: String,
    pub(crate) repository: Repository,
    pub(crate) digest: Digest,
    pub(crate) workers: usize,
}

impl Registry {
    /// Writes heartbeats and deletes old workers while the registry runs.
    pub(crate) fn start_worker_upkeep(&self) {
        let this = self.clone();
        self.start(async move {
            let mut expired = Instant::now();
            loop {
                tokio::time::sleep(BEAT_INTERVAL).await;
                let written = this.workers.write_beats(this.store()).await;
                let forgotten = match expired.elapsed() >= EXPIRE_INTERVAL && !this.config().read_only {
                    true => {
                        expired = Instant::now();
                        this.store().worker_expire(FORGOTTEN_AFTER).await
                    }
                    false => Ok(()),
                };
                if let Err(error) = written.map(drop).and(forgotten) {
                    tracing::warn!(
                        error = chain(&error),
                        "failed to write heartbeats of workers; will retry"
                    );
                }
            }
        });
    }

    pub async fn worker_register(
        &self,
        caller: &Caller,
        proof: JoinProof<'_>,
        announcement: WorkerAnnouncement,
    ) -> Result<Registration, Error> {
        self.authorize(caller, Action::Join, Target::Workers).await?;
        if let Err(error) = self.worker_may_join(proof).await {
            if proof.token.is_some() {
                self.audit_invalid_token(caller);
                self.rate_limits().check_wrong_tokens(caller)?;
            }
            return Err(error);
        }
        let id = Uuid::new_v4();
        let (credential, secret) = (random_secret(WORKER_CREDENTIAL_PREFIX), random_secret(""));
        let row = WorkerRow {
            id,
            secret: self.vault.seal_text(WORKER_SECRET, &secret)?,
            credential: Some(digest_of(credential.expose())),
            advertise: announcement.advertise.into(),
            version: announcement.version,
            devices: to_json(&announcement.devices),
            loaded: "[]".to_owned(),
            cached: "[]".to_owned(),
            reserved_for: to_json(&announcement.reserved_for),
            registered_at: 0,
            inventory: 0,
            draining: false,
        };
        let mut tx = self.store().begin().await?;
        tx.worker_insert(&row).await?;
        let (worker, detail) =
            (caller.with_identity(Identity::Worker { id }), json!({ "advertise": row.advertise }));
        self.audit(&mut tx, &worker, "worker.join", worker.actor(), detail).await?;
        tx.commit().await?;
        self.workers.changed();
        self.access.changed();
        Ok(Registration { id, credential, secret, heartbeat_ms: HEARTBEAT.as_millis() as u64 })
    }

    /// `None` if no worker has this id and credential: it has to register again.
    pub async fn worker_heartbeat(
        &self,
        caller: &Caller,
        id: Uuid,
        credential: &str,
        heartbeat: &Heartbeat,
    ) -> Result<Option<HeartbeatReply>, Error> {
        self.authorize(caller, Action::Join, Target::Workers).await?;
        let credential = digest_of(credential);
        // 1. Without changes, the heartbeat is written with those of other workers.
        let table = self.workers_attached().await?;
        let worker = table.find(id);
        if worker.is_some_and(|worker| {
            worker.credential.as_ref() == Some(&credential) && !worker_table::is_changed(worker, heartbeat)
        }) {
            self.workers.beat(id);
            return Ok(Some(self.heartbeat_reply(worker).await?));
        }
        // 2. Otherwise write its new inventory.
        let (devices, loaded, cached) =
            (to_json(&heartbeat.devices), to_json(&heartbeat.loaded), to_json(&heartbeat.cached));
        let inventory = WorkerInventory { devices: &devices, loaded: &loaded, cached: &cached };
        let known = self.store().worker_update(id, &credential, inventory).await?;
        self.workers.changed();
        Ok(if known { Some(self.heartbeat_reply(worker).await?) } else { None })
    }

    async fn heartbeat_reply(&self, worker: Option<&Arc<Worker>>) -> Result<HeartbeatReply, Error> {
        let Some(worker) = worker else { return Ok(HeartbeatReply::default()) };
        let mut reply = HeartbeatReply { draining: worker.draining, reserved_for: Vec::new() };
        for name in &worker.reserved_for {
            let row = self.store().manifest_read(&name.repository, &name.reference).await?;
            let (name, digest) = (name.clone(), row.map(|row| row.digest));
            reply.reserved_for.push(ReservedModel { name, digest });
        }
        Ok(reply)
    }

    /// Stops or resumes sending requests to a worker. Returns false if there is no such worker. A worker that
    /// registers again begins as any other.
    pub async fn worker_drain(&self, caller: &Caller, id: Uuid, draining: bool) -> Result<bool, Error> {
        self.authorize(caller, Action::Administer, Target::Workers).await?;
        let mut tx = self.store().begin().await?;
        if !tx.worker_drain(id, draining).await? {
            return Ok(false);
        }
        let action = if draining { "worker.drain" } else { "worker.resume" };
        self.audit(&mut tx, caller, action, format!("worker:{id}"), Value::Null).await?;
        tx.commit().await?;
        self.workers.changed();
        Ok(true)
    }

    /// Ends a worker's registration, as the worker asks. Returns false if no worker has this id and credential.
    pub async fn worker_leave(&self, caller: &Caller, id: Uuid, credential: &str) -> Result<bool, Error> {
        self.authorize(caller, Action::Join, Target::Workers).await?;
        let worker = caller.with_identity(Identity::Worker { id });
        self.worker_end(&worker, id, Some(&digest_of(credential)), "worker.leave").await
    }

    /// Ends a worker's registration, as an administrator asks. Returns false if there is no such worker. A worker that
    /// still has the shared secret registers again. A server without accounts lets no client remove a worker.
    pub async fn worker_remove(&self, caller: &Caller, id: Uuid) -> Result<bool, Error> {
        self.authorize(caller, Action::Administer, Target::Workers).await?;
        if caller.account().is_none() && !caller.is_internal() {
            return Ok(false);
        }
        self.worker_end(caller, id, None, "worker.remove").await
    }

    async fn worker_end(
        &self,
        caller: &Caller,
        id: Uuid,
        credential: Option<&Digest>,
        action: &'static str,
    ) -> Result<bool, Error> {
        let mut tx = self.store().begin().await?;
        if !tx.worker_delete(id, credential).await? {
            return Ok(false);
        }
        self.audit(&mut tx, caller, action, format!("worker:{id}"), Value::Null).await?;
        tx.commit().await?;
        self.workers.changed();
        self.access.changed();
        Ok(true)
    }

    /// The attached workers.
    pub async fn worker_list(&self, caller: &Caller) -> Result<Vec<Worker>, Error> {
        self.authorize(caller, Action::List, Target::Workers).await?;
        Ok(self.workers_attached().await?.all())
    }

    /// The attached workers, at most a second old.
    pub(crate) async fn workers_attached(&self) -> Result<Arc<WorkerTable>, Error> {
        self.workers.table(self.store(), &self.vault).await
    }

    /// How many workers have a manifest loaded.
    pub(crate) async fn workers_with(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<usize, Error> {
        self.authorize(caller, Action::Infer, Target::Repository(repository)).await?;
        Ok(self.workers_attached().await?.loaded(digest).len())
    }

    /// The models that workers have loaded and that the caller may run, a few of them.
    pub(crate) async fn loaded_on_workers(&self, caller: &Caller) -> Result<Vec<LoadedOnWorkers>, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let workers = self.workers_attached().await?;
        let mut found: Vec<LoadedOnWorkers> = Vec::new();
        for worker in workers.open().iter().map(|at| workers.worker(*at)) {
            for model in &worker.loaded {
                let same = |known: &LoadedOnWorkers| {
                    known.repository == model.repository && known.digest == model.digest
                };
                if found.len() >= MAX_LOADED || found.iter().any(same) {
                    continue;
                }
                if self.may(caller, Action::Pull, &model.repository).await? {
                    found.push(LoadedOnWorkers {
                        name: model.name(),
                        repository: model.repository.clone(),
                        digest: model.digest.clone(),
                        workers: workers.loaded(&model.digest).len(),
                    });
                }
            }
        }
        Ok(found)
    }

    /// Which of the worker and the model that this process waits for are still missing.
    pub(super) async fn list_missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        // A worker of an earlier run may still be listed; it does not count.
        let is_new = |worker: &Worker| worker.registered_at >= self.opened_at;
        if self.config().wait_for_worker
            && !matches!(self.worker_list(&Caller::INTERNAL).await, Ok(list) if list.iter().any(is_new))
        {
            missing.push("no worker is attached yet".to_owned());
        }
        if let Some(Name { repository, reference, .. }) = &self.awaited_model
            && !matches!(self.model_resolve(&Caller::INTERNAL, repository, reference).await, Ok(Some(_)))
        {
            missing.push(format!("model {repository}:{reference} is not imported yet"));
        }
        missing
    }

    /// With a shared secret, every worker that has it may join. Without one, and without accounts, workers on
    /// this machine may. The worker of this process always may.
    async fn worker_may_join(&self, proof: JoinProof<'_>) -> Result<(), Error> {
        let shows = |expected: &Secret| proof.token.is_some_and(|token| expected.matches(token));
        if shows(&self.internal_token) {
            return Ok(());
        }
        match &self.config().worker_token {
            Some(expected) if shows(expected) => Ok(()),
            Some(_) => Err(Error::Unauthorized),
            None if proof.is_local && self.is_open().await? => Ok(()),
            None => {
                let needs = "a worker needs a token; set LODE_WORKER_TOKEN on the server and on the worker";
                Err(Error::Denied { needs: needs.to_owned() })
            }
        }
    }

    /// The worker with this credential. It is remembered like the credentials of accounts: a removal raises the version
    /// of access control. The table of workers is older than that while the database does not respond.
    pub(super) async fn worker_of_credential(&self, credential: Digest) -> Result<Option<Uuid>, Error> {
        self.worker_known(CredentialKey::Worker(credential)).await
    }

    /// Whether a worker is registered, seen recently or not.
    pub(super) async fn worker_exists(&self, id: Uuid) -> Result<bool, Error> {
        Ok(self.worker_known(CredentialKey::WorkerId(id)).await?.is_some())
    }

    async fn worker_known(&self, key: CredentialKey) -> Result<Option<Uuid>, Error> {
        let key = (self.access_state().await?.version, key);
        if let Some(known) = self.sign_ins.workers.get(&key) {
            return Ok(Some(known));
        }
        let found = match &key.1 {
            CredentialKey::Worker(credential) => self.store().worker_find_by_credential(credential).await?,
            CredentialKey::WorkerId(id) => self.store().worker_rows(&[*id]).await?.pop().map(|row| row.id),
            _ => None,
        };
        if let Some(id) = found {
            self.sign_ins.workers.insert(key, id);
        }
        Ok(found)
    }
}

/// Two random UUIDs make a secret of 244 bits.
fn random_secret(prefix: &str) -> Secret {
    Secret::new(format!("{prefix}{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple()))
}

/// What is stored of a credential. It is random, so a fast hash is enough.
fn digest_of(credential: &str) -> Digest {
    Digest::sha256(credential.as_bytes())
}

fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("data that was parsed from JSON serialises to JSON")
}
