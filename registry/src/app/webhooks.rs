//! Telling webhooks: an event is written down with the change that it tells of, all or nothing, and delivered afterwards.

use lode_model::digest::Digest;
use lode_model::reference::{Repository, Tag};
use serde::Serialize;
use url::Url;
use uuid::Uuid;

use super::Registry;
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
use crate::config::hide_password;
use crate::store::{Delivery, Tx, Why, now_ms};
use crate::webhooks::{Event, Webhook};

/// How many deliveries a listing shows.
const SHOWN: u32 = 1000;

/// An event that an address has not taken.
#[derive(Clone, Debug, Serialize)]
pub struct WebhookDelivery {
    pub id: String,
    /// The event's id, as the address sees it.
    pub event: String,
    pub kind: String,
    pub url: String,
    /// Milliseconds since 1970.
    pub created_at: i64,
    pub attempts: i64,
    pub problem: Option<String>,
    /// Set where no further attempt is made.
    pub given_up_at: Option<i64>,
}

impl Registry {
    /// Writes `event` down for every address that wants it, in the transaction of the change.
    pub(super) async fn announce(&self, tx: &mut Tx, event: Event<'_>) -> Result<(), Error> {
        let wanting: Vec<&Webhook> =
            self.config.webhook.iter().filter(|webhook| webhook.wants(&event)).collect();
        if wanting.is_empty() {
            return Ok(());
        }
        let created_at = now_ms();
        let mut delivery = Delivery {
            id: String::new(),
            event: Uuid::now_v7().to_string(),
            kind: event.kind().as_str().to_owned(),
            payload: event.payload(created_at),
            created_at,
            attempts: 0,
        };
        for webhook in wanting {
            delivery.id = Uuid::now_v7().to_string();
            tx.delivery_insert(&delivery, webhook.url.as_str()).await?;
        }
        Ok(())
    }

    /// Tells of a manifest that was just put, and of each tag with what it named before.
    pub(super) async fn announce_push(
        &self,
        tx: &mut Tx,
        push: Event<'_>,
        moved: &[(Tag, Option<Digest>)],
    ) -> Result<(), Error> {
        let Event::Push { repository, digest, .. } = push else { return Ok(()) };
        self.announce(tx, push).await?;
        for (tag, previous) in moved {
            if previous.as_ref() != Some(digest) {
                let previous = previous.as_ref();
                self.announce(tx, Event::Tag { repository, tag, digest, previous }).await?;
            }
        }
        Ok(())
    }

    /// Removes a manifest with its tags, and tells of it; `at` starts the grace of what it named. False if it was not there.
    /// The repository is locked.
    pub(super) async fn manifest_take_away(
        &self,
        tx: &mut Tx,
        repository: &Repository,
        digest: &Digest,
        at: i64,
        why: &Why,
    ) -> Result<bool, Error> {
        let tags = match self.config.webhook.is_empty() {
            true => Vec::new(),
            false => tx.tags_naming(repository, digest).await?,
        };
        let gone = tx.manifest_delete(repository, digest, at, why).await?;
        if gone {
            let reason = why.reason.word();
            self.announce(tx, Event::Delete { repository, digest, tags: &tags, reason }).await?;
        }
        Ok(gone)
    }

    /// Events that wait for their delivery or were given up, the newest first.
    pub async fn webhook_list(&self, caller: &Caller) -> Result<Vec<WebhookDelivery>, Error> {
        allow(caller, Action::Administer, Target::Server)?;
        let rows = self.store.delivery_list(SHOWN).await?;
        Ok(rows
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
            .collect())
    }

    /// Delivers an event at once, also one that was given up. False if there is none.
    pub async fn webhook_retry(&self, caller: &Caller, id: Uuid) -> Result<bool, Error> {
        allow(caller, Action::Administer, Target::Server)?;
        self.store.delivery_again(&id.to_string(), now_ms()).await
    }
}

fn without_credentials(target: &str) -> String {
    target.parse().map(|url: Url| hide_password(&url).into()).unwrap_or_default()
}
