//! Webhook events. An event is stored in the transaction of the change that it reports, and delivered
//! afterwards.

use lode_model::digest::Digest;
use lode_model::reference::Tag;
use serde::Serialize;
use serde_json::Value;
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;

use super::event::Event;
use super::{Page, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::config::Webhook;
use crate::config::redact_url;
use crate::store::{NewDelivery, RemovalCause, RemovedManifest, Tx, UnreferencedContent};
use crate::time::now_ms;

/// An event that a target has not accepted.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WebhookDelivery {
    pub id: String,
    /// The event's id, as the target sees it.
    pub event: String,
    pub kind: String,
    pub url: String,
    /// Milliseconds since 1970.
    pub created_at: i64,
    pub attempts: i64,
    pub problem: Option<String>,
    /// Milliseconds since 1970; set if there is no further attempt.
    pub given_up_at: Option<i64>,
}

impl Registry {
    /// Stores `event` for every target that subscribes to it, in the transaction of the change.
    pub(super) async fn announce(&self, tx: &mut Tx, actor: &str, event: Event<'_>) -> Result<(), Error> {
        self.announce_all(tx, actor, &[event]).await
    }

    /// Like `announce`, for several events.
    pub(super) async fn announce_all(
        &self,
        tx: &mut Tx,
        actor: &str,
        events: &[Event<'_>],
    ) -> Result<(), Error> {
        let created_at = now_ms();
        let mut deliveries = Vec::new();
        for event in events {
            let accepts = |webhook: &&Webhook| {
                event.repositories().iter().any(|repository| webhook.accepts(event.kind(), Some(repository)))
            };
            let wanting: Vec<&Webhook> = self.config.webhook.iter().filter(accepts).collect();
            if wanting.is_empty() {
                continue;
            }
            let (id, payload) = (Uuid::now_v7().to_string(), event.payload(created_at, actor));
            deliveries.extend(wanting.into_iter().map(|webhook| NewDelivery {
                id: Uuid::now_v7().to_string(),
                event: id.clone(),
                kind: event.kind().as_str(),
                target: webhook.url.as_str(),
                payload: payload.clone(),
                created_at,
            }));
        }
        tx.deliveries_insert(&deliveries).await
    }

    /// Announces a stored manifest, and each moved tag with its previous target.
    pub(super) async fn announce_push(
        &self,
        tx: &mut Tx,
        actor: &str,
        push: Event<'_>,
        moved: &[(Tag, Option<Digest>)],
    ) -> Result<(), Error> {
        let Event::Push { repository, digest, .. } = push else { return Ok(()) };
        self.announce(tx, actor, push).await?;
        for (tag, previous) in moved {
            if previous.as_ref() != Some(digest) {
                let previous = previous.as_ref();
                self.announce(tx, actor, Event::Tag { repository, tag, digest, previous }).await?;
            }
        }
        Ok(())
    }

    /// Removes manifests with their tags, and announces it. The time with each manifest starts the grace
    /// period of its content. Returns those that existed. The repositories are locked.
    pub(super) async fn manifests_remove(
        &self,
        tx: &mut Tx,
        manifests: &[UnreferencedContent],
        why: &RemovalCause,
    ) -> Result<Vec<RemovedManifest>, Error> {
        let removed = tx.manifests_delete(manifests, why).await?;
        let reason = why.reason.as_str();
        let events: Vec<Event<'_>> = removed
            .iter()
            .map(|RemovedManifest { repository, digest, tags }| Event::Delete {
                repository,
                digest,
                tags,
                reason,
            })
            .collect();
        self.announce_all(tx, &why.actor, &events).await?;
        Ok(removed)
    }

    /// Pending and abandoned deliveries, newest first: at most `n`, after the delivery `after`.
    pub async fn webhook_list(
        &self,
        caller: &Caller,
        after: Option<&str>,
        n: u32,
    ) -> Result<Page<WebhookDelivery>, Error> {
        self.authorize(caller, Action::Inspect, Target::Server).await?;
        let mut rows = self.store.delivery_list(after, n.saturating_add(1)).await?;
        let more = rows.len() > n as usize;
        rows.truncate(n as usize);
        let items = rows
            .into_iter()
            .map(|row| WebhookDelivery {
                id: row.id,
                event: row.event,
                kind: row.kind,
                url: without_credentials(&row.target),
                created_at: row.created_at,
                attempts: row.attempts,
                problem: row.problem,
                given_up_at: row.given_up_at,
            })
            .collect();
        Ok(Page { items, more })
    }

    /// Delivers an event at once, even an abandoned one. Returns false if there is none.
    pub async fn webhook_retry(&self, caller: &Caller, id: Uuid) -> Result<bool, Error> {
        self.authorize(caller, Action::Administer, Target::Server).await?;
        let mut tx = self.store.begin().await?;
        let is_known = tx.delivery_redeliver(&id.to_string(), now_ms()).await?;
        if is_known {
            self.audit(&mut tx, caller, "webhook.retry", format!("delivery:{id}"), Value::Null).await?;
        }
        tx.commit().await?;
        Ok(is_known)
    }
}

fn without_credentials(target: &str) -> String {
    target.parse().map(|url: Url| redact_url(&url).into()).unwrap_or_default()
}
