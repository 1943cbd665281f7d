//! The audit log. A change writes its record in its own transaction. Refusals, sign-ins and pulls are
//! recorded by a task of this process: each kind once in a while for the same caller and target, so that
//! repeated requests cannot fill the database.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::reference::Repository;
use moka::sync::Cache;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use utoipa::ToSchema;
use uuid::Uuid;

use super::audit_queue::MAX_DIFFERENT;
use super::sign_in_errors::{PublisherError, SignOnError};
use super::{Page, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Identity, Target};
use crate::config::{EventKind, Webhook};
use crate::error::chain;
use crate::store::{AuditQuery, AuditRow, NewDelivery, Tx};
use crate::time::{millis, now_ms, rfc3339};

/// How many records one transaction writes.
const BATCH: usize = 100;
/// The target of a record that stands for refusals of many others.
const OTHER_TARGETS: &str = "other";
/// Longer texts of clients are cut.
const MAX_TEXT_BYTES: usize = 512;
const EXPIRE_INTERVAL: Duration = Duration::from_secs(3600);
/// How long a stopping server writes the records that wait.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A record of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditRecord {
    pub id: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub at: String,
    /// `user:alice`, `robot:team+ci`, `worker:ID`, `anonymous` or `server`.
    pub actor: String,
    /// The id of its account.
    pub account: Option<String>,
    /// The credential: `password`, `token ID`, `session ID` or `key ID`.
    pub via: Option<String>,
    /// Such as `manifest.push`.
    pub action: String,
    pub target: String,
    /// `ok` or `refused`.
    pub outcome: String,
    pub address: Option<String>,
    /// The client's `User-Agent`.
    pub agent: Option<String>,
    /// The id of the request, as in the server's log.
    pub request: Option<String>,
    pub detail: Option<Value>,
}

/// Which records are listed; `None` lists all.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub actor: Option<String>,
    pub action: Option<String>,
    pub target: Option<String>,
    pub outcome: Option<String>,
    /// Milliseconds since 1970.
    pub since: Option<i64>,
    /// Before the record with this id.
    pub before: Option<String>,
}

impl Registry {
    /// Records a change in its transaction, and announces it to webhooks.
    pub(super) async fn audit(
        &self,
        tx: &mut Tx,
        caller: &Caller,
        action: &'static str,
        target: impl Into<String>,
        detail: Value,
    ) -> Result<(), Error> {
        self.audit_write(tx, &audit_row(caller, action, target.into(), "ok", &detail)).await
    }

    async fn audit_write(&self, tx: &mut Tx, row: &AuditRow) -> Result<(), Error> {
        tx.audit_insert(row).await?;
        let wants = |webhook: &&Webhook| webhook.accepts(EventKind::Audit, None);
        let wanting: Vec<&Webhook> = self.config.webhook.iter().filter(wants).collect();
        if wanting.is_empty() {
            return Ok(());
        }
        let record = AuditRecord::from(row.clone());
        let payload = json!({ "type": "audit", "timestamp": record.at, "data": record }).to_string();
        let deliveries: Vec<NewDelivery<'_>> = wanting
            .into_iter()
            .map(|webhook| NewDelivery {
                id: Uuid::now_v7().to_string(),
                event: row.id.clone(),
                kind: EventKind::Audit.as_str(),
                target: webhook.url.as_str(),
                payload: payload.clone(),
                created_at: row.at,
            })
            .collect();
        tx.deliveries_insert(&deliveries).await
    }

    /// Records that an account or a worker was refused. Clients without credentials are refused all the time:
    /// they try before they sign in.
    pub(super) fn audit_refusal(&self, caller: &Caller, action: Action, target: Target<'_>) {
        if matches!(caller.identity, Identity::Anonymous | Identity::Guest { .. } | Identity::Internal) {
            return;
        }
        let detail = json!({ "action": action.as_str() });
        let mut row = audit_row(caller, "access.refuse", target.to_string(), "refused", &detail);
        if self.audit_queue.refusals.contains_key(&refusal_key(&row, action.as_str())) {
            return;
        }
        // The caller chooses the target: of many different ones, one record stands for the rest.
        let count = self.audit_queue.different.get_with(repeat_key([&row.actor]), Arc::default);
        if count.fetch_add(1, Ordering::Relaxed) >= MAX_DIFFERENT {
            OTHER_TARGETS.clone_into(&mut row.target);
        }
        self.audit_soon(row, action.as_str());
    }

    /// Records a sign-in with a password, or a failed one. `name`: of the account, as the client wrote it.
    pub(super) fn audit_sign_in(&self, caller: &Caller, name: &str, is_allowed: bool) {
        let (outcome, target) = (if is_allowed { "ok" } else { "refused" }, format!("user:{}", cut(name)));
        self.audit_soon(audit_row(caller, "account.sign_in", target, outcome, &Value::Null), "");
    }

    /// Records that a sign-in at a provider has failed.
    pub(super) fn audit_sign_on_refused(&self, client: &Caller, provider: &str, error: &SignOnError) {
        let detail = json!({ "reason": cut(&error.to_string()) });
        let target = format!("provider:{provider}");
        self.audit_soon(audit_row(client, "account.sign_in", target, "refused", &detail), "");
    }

    /// Records that a CI job has got no token.
    pub(super) fn audit_publish_refused(&self, client: &Caller, issuer: &str, error: &PublisherError) {
        let (target, reason) = match error {
            // Any client can name any issuer in a token.
            PublisherError::NoPublisher { .. } => {
                ("issuer:unknown".to_owned(), "no publisher is registered for the issuer".to_owned())
            }
            _ => (format!("issuer:{}", cut(issuer)), error.to_string()),
        };
        let detail = json!({ "reason": cut(&reason) });
        self.audit_soon(audit_row(client, "publisher.sign_in", target, "refused", &detail), "");
    }

    /// Records that a client has sent a token or a signature that is not valid.
    pub(crate) fn audit_invalid_token(&self, client: &Caller) {
        let row = audit_row(client, "account.sign_in", "token".to_owned(), "refused", &Value::Null);
        self.audit_soon(row, "");
    }

    /// Records that a manifest was pulled, on a server with accounts.
    pub(crate) fn audit_pull(&self, caller: &Caller, repository: &Repository, digest: &Digest) {
        if caller.is_internal() || !self.is_known_closed() {
            return;
        }
        let key = repeat_key([&caller.actor(), repository.as_str(), digest.as_str()]);
        // Most pulls are repetitions.
        if self.audit_queue.pulls.contains_key(&key) {
            return;
        }
        let row = audit_row(caller, "manifest.pull", format!("{repository}@{digest}"), "ok", &Value::Null);
        self.audit_send(row, key, &self.audit_queue.pulls);
    }

    /// Records a refusal or a sign-in, unless one of the same actor, address, action, outcome, `kind` and
    /// target was recorded just now. The detail does not count: clients choose its text.
    fn audit_soon(&self, row: AuditRow, kind: &str) {
        let key = refusal_key(&row, kind);
        self.audit_send(row, key, &self.audit_queue.refusals);
    }

    /// Queues a record, unless its key is remembered.
    fn audit_send(&self, row: AuditRow, key: Digest, remembered: &Cache<Digest, ()>) {
        if self.config.read_only || remembered.contains_key(&key) {
            return;
        }
        match self.audit_queue.sender.try_send(row) {
            Ok(()) => remembered.insert(key, ()),
            Err(error) => {
                let row = error.into_inner();
                tracing::warn!(
                    actor = row.actor,
                    action = row.action,
                    "audit record dropped: too many are waiting"
                );
            }
        }
    }

    /// Writes the records that wait, and deletes old ones.
    pub(crate) fn start_audit_log(&self) {
        if self.config.read_only {
            tracing::warn!("a read-only server keeps no audit records of refusals, sign-ins and pulls");
            return;
        }
        let receiver = self.audit_queue.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(receiver) = receiver {
            // It ends on its own when the registry stops, once it has written the records that wait.
            self.start_draining(self.clone().audit_write_queue(receiver));
        }
        let this = self.clone();
        self.start(async move {
            loop {
                let cutoff = now_ms().saturating_sub(millis(this.config.audit_history));
                if let Err(error) = this.store().audit_expire(cutoff).await {
                    tracing::warn!(error = chain(&error), "failed to delete old audit records; will retry");
                }
                tokio::time::sleep(EXPIRE_INTERVAL).await;
            }
        });
    }

    async fn audit_write_queue(self, mut receiver: mpsc::Receiver<AuditRow>) {
        let mut rows = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                _ = receiver.recv_many(&mut rows, BATCH) => {}
                () = self.stopping().cancelled() => break,
            }
            self.audit_write_batch(&mut rows).await;
        }
        receiver.close();
        let rest = async {
            while receiver.recv_many(&mut rows, BATCH).await > 0 {
                self.audit_write_batch(&mut rows).await;
            }
        };
        if tokio::time::timeout(STOP_TIMEOUT, rest).await.is_err() {
            tracing::warn!("the server stopped before all audit records were written; the others are lost");
        }
    }

    async fn audit_write_batch(&self, rows: &mut Vec<AuditRow>) {
        if let Err(error) = self.audit_write_all(rows).await {
            tracing::warn!(
                records = rows.len(),
                error = chain(&error),
                "failed to write audit records; they are lost"
            );
        }
        rows.clear();
    }

    async fn audit_write_all(&self, rows: &[AuditRow]) -> Result<(), Error> {
        let mut tx = self.store().begin().await?;
        for row in rows {
            self.audit_write(&mut tx, row).await?;
        }
        tx.commit().await
    }

    /// Records of the audit log, newest first, at most `n`.
    pub async fn audit_list(
        &self,
        caller: &Caller,
        filter: &AuditFilter,
        n: u32,
    ) -> Result<Page<AuditRecord>, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let AuditFilter { actor, action, target, outcome, since, before } = filter;
        let query = AuditQuery {
            actor: actor.as_deref(),
            action: action.as_deref(),
            target: target.as_deref(),
            outcome: outcome.as_deref(),
            since: *since,
            before: before.as_deref(),
        };
        let rows = self.store().audit_list(query, i64::from(n) + 1).await?;
        Ok(Page::cut(rows.into_iter().map(AuditRecord::from).collect(), n))
    }
}

fn audit_row(
    caller: &Caller,
    action: &'static str,
    target: String,
    outcome: &'static str,
    detail: &Value,
) -> AuditRow {
    let (account, origin) = (caller.account(), caller.origin.as_deref());
    AuditRow {
        id: Uuid::now_v7().to_string(),
        at: now_ms(),
        actor: caller.actor(),
        account: account.map(|account| account.id.to_string()),
        via: account.map(|account| account.credential.to_string()),
        action: action.to_owned(),
        target,
        outcome: outcome.to_owned(),
        address: origin.and_then(|origin| origin.address).map(|address| address.to_string()),
        agent: origin.and_then(|origin| origin.agent.as_deref()).map(|agent| cut(agent).to_owned()),
        request: origin.map(|origin| origin.request.clone()),
        detail: Some(detail).filter(|detail| !detail.is_null()).map(Value::to_string),
    }
}

/// The first part of a text.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// What makes two refusals or sign-ins the same.
fn refusal_key(row: &AuditRow, kind: &str) -> Digest {
    let address = row.address.as_deref().unwrap_or_default();
    repeat_key([&row.actor, address, &row.action, &row.outcome, kind, &row.target])
}

/// Under which key a record is remembered. Only the last part may have line breaks.
fn repeat_key<const N: usize>(parts: [&str; N]) -> Digest {
    Digest::sha256(parts.join("\n").as_bytes())
}

impl From<AuditRow> for AuditRecord {
    fn from(row: AuditRow) -> AuditRecord {
        AuditRecord {
            id: row.id,
            at: rfc3339(row.at),
            actor: row.actor,
            account: row.account,
            via: row.via,
            action: row.action,
            target: row.target,
            outcome: row.outcome,
            address: row.address,
            agent: row.agent,
            request: row.request,
            detail: row.detail.and_then(|text| serde_json::from_str(&text).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::audit_queue::QUEUE;
    use super::*;
    use crate::{Config, open};

    fn fail(registry: &Registry, count: usize) {
        for at in 0..count {
            registry.audit_sign_in(&Caller::ANONYMOUS, &format!("user-{at}"), false);
        }
    }

    async fn count(registry: &Registry) -> usize {
        registry.store().audit_list(AuditQuery::default(), i64::MAX).await.unwrap().len()
    }

    /// The records after a stop.
    async fn count_after_stop(registry: Registry, config: Config) -> usize {
        registry.close().await;
        drop(registry);
        count(&open(config).await.unwrap()).await
    }

    #[tokio::test]
    async fn records_that_wait_are_written_when_the_server_stops() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { data: folder.path().to_owned(), ..Config::default() };
        let registry = open(config.clone()).await.unwrap();
        fail(&registry, 3 * BATCH);
        assert_eq!(count_after_stop(registry, config).await, 3 * BATCH);
    }

    #[tokio::test]
    async fn a_record_that_was_dropped_is_written_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { data: folder.path().to_owned(), ..Config::default() };
        let registry = open(config.clone()).await.unwrap();
        // The last one finds the queue full.
        fail(&registry, QUEUE + 1);
        while count(&registry).await < QUEUE {}
        fail(&registry, QUEUE + 1);
        assert_eq!(count_after_stop(registry, config).await, QUEUE + 1, "and the others only once");
    }
}
