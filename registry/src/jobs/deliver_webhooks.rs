//! The job that posts events, with a loop for each URL, so that a slow receiver does not delay others.
//! An event is leased before it is posted. If the replica dies, another one takes it over.

use std::time::Duration;

use futures::future::join_all;
use http::{StatusCode, header};

use super::webhook_signature::sign;
use crate::config::Webhook;
use crate::store::Delivery;
use crate::time::{millis, now_ms};
use crate::{Error, OpenError, Registry, metrics};

/// Interval of checks for due events.
const DUE_EVENT_INTERVAL: Duration = Duration::from_secs(1);
/// How many events are posted to one URL at a time.
const MAX_CONCURRENT: usize = 4;
/// Timeout of one attempt.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Lease of an event: longer than an attempt and its database updates.
const EVENT_LEASE: Duration = Duration::from_secs(60);
/// The pause after the first failure; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// How long abandoned events stay visible.
const ABANDONED_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
const TIDY_INTERVAL: Duration = Duration::from_secs(3600);

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("the receiver responded with {0}")]
    Refused(StatusCode),
    /// The receiver wants no more events.
    #[error("the receiver responded with 410: it is gone")]
    Gone,
    /// The source is only for the log: it reveals what runs at that address.
    #[error("the receiver sent no valid response")]
    NoResponse(#[source] reqwest::Error),
}

/// Starts the delivery of the registry's events.
pub(super) fn start(registry: &Registry) -> Result<(), OpenError> {
    // Also without any webhook in the settings: events of a removed one would wait forever.
    let this = registry.clone();
    registry.start(async move {
        loop {
            if let Err(error) = tidy(&this).await {
                tracing::warn!(
                    error = crate::error::chain(&error),
                    "failed to delete old webhook events; will retry"
                );
            }
            tokio::time::sleep(TIDY_INTERVAL).await;
        }
    });
    if registry.config().webhook.is_empty() {
        return Ok(());
    }
    for webhook in registry.config().webhook.clone() {
        // Permitted at exactly the URL in the settings. It follows no redirects.
        let egress = registry.egress().with_permitted(&webhook.url);
        let client = egress
            .http(&webhook.url)
            .map_err(|error| OpenError::Config { setting: "webhook", reason: error.to_string() })?;
        let (this, client) = (registry.clone(), client.clone());
        registry.start(async move {
            loop {
                match deliver_due(&this, &client, &webhook).await {
                    // There may be more.
                    Ok(true) => {}
                    Ok(false) => tokio::time::sleep(DUE_EVENT_INTERVAL).await,
                    Err(error) => {
                        tracing::warn!(
                            error = crate::error::chain(&error),
                            "failed to read or update due webhook events; will retry"
                        );
                        tokio::time::sleep(DUE_EVENT_INTERVAL).await;
                    }
                }
            }
        });
    }
    Ok(())
}

/// Leases a few due events and posts them. Returns whether there were any.
async fn deliver_due(
    registry: &Registry,
    client: &reqwest::Client,
    webhook: &Webhook,
) -> Result<bool, Error> {
    let taken =
        registry.store().deliveries_claim(webhook.url.as_str(), EVENT_LEASE, MAX_CONCURRENT as i64).await?;
    let any = !taken.is_empty();
    let attempts: Vec<_> =
        taken.iter().map(|delivery| deliver(registry, client, webhook, delivery)).collect();
    let settled: Result<Vec<()>, Error> = join_all(attempts).await.into_iter().collect();
    settled.map(|_| any)
}

async fn deliver(
    registry: &Registry,
    client: &reqwest::Client,
    webhook: &Webhook,
    delivery: &Delivery,
) -> Result<(), Error> {
    let outcome = post(client, webhook, delivery).await;
    record_outcome(registry, webhook, delivery, outcome).await
}

async fn post(client: &reqwest::Client, webhook: &Webhook, delivery: &Delivery) -> Result<(), DeliveryError> {
    let timestamp = now_ms() / 1000;
    let signature = sign(&webhook.secret, &delivery.event, timestamp, &delivery.payload);
    let response = client
        .post(webhook.url.clone())
        .timeout(TIMEOUT)
        .header(header::CONTENT_TYPE, "application/json")
        .header("webhook-id", &delivery.event)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature)
        .header("lode-event", &delivery.kind)
        .body(delivery.payload.clone())
        .send()
        .await
        .map_err(|error| DeliveryError::NoResponse(error.without_url()))?;
    match response.status() {
        status if status.is_success() => Ok(()),
        StatusCode::GONE => Err(DeliveryError::Gone),
        status => Err(DeliveryError::Refused(status)),
    }
}

/// Records the result of an attempt. If that fails, the event is posted again: delivery is at least once.
async fn record_outcome(
    registry: &Registry,
    webhook: &Webhook,
    delivery: &Delivery,
    outcome: Result<(), DeliveryError>,
) -> Result<(), Error> {
    let Err(problem) = outcome else {
        metrics::record_webhook_attempt("delivered");
        return registry.store().delivery_done(delivery).await;
    };
    let now = now_ms();
    let pause = pause_after(delivery.attempts);
    let last_at = delivery.created_at + millis(registry.config().webhook_give_up);
    let is_over = matches!(problem, DeliveryError::Gone) || now + millis(pause) > last_at;
    let (text, detail) = (problem.to_string(), crate::error::chain(&problem));
    // Only the host: the rest of the URL may be a secret.
    let host = webhook.url.host_str();
    if is_over {
        metrics::record_webhook_attempt("given_up");
        tracing::error!(
            host,
            event = delivery.event,
            attempts = delivery.attempts,
            problem = detail,
            "webhook delivery abandoned"
        );
        registry.store().delivery_abandon(delivery, &text, now).await
    } else {
        metrics::record_webhook_attempt("retry");
        tracing::warn!(
            host,
            event = delivery.event,
            attempts = delivery.attempts,
            problem = detail,
            "webhook delivery failed; will retry"
        );
        registry.store().delivery_retry(delivery, &text, pause).await
    }
}

/// The pause after this many attempts.
fn pause_after(attempts: i64) -> Duration {
    let doublings = u32::try_from(attempts - 1).unwrap_or(0).min(16);
    FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE)
}

/// Abandons events that no replica delivers any more (their URL was removed from the settings), and deletes
/// those that were abandoned long ago.
async fn tidy(registry: &Registry) -> Result<(), Error> {
    let now = now_ms();
    // Twice the time: a replica that still has the URL in its settings abandons the event itself.
    let created_before = now
        .saturating_sub(millis(registry.config().webhook_give_up).saturating_mul(2))
        .saturating_sub(millis(TIDY_INTERVAL));
    registry.store().deliveries_abandon(created_before, now).await?;
    registry.store().deliveries_delete_abandoned(now - millis(ABANDONED_RETENTION)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        let pauses = [1, 2, 3, 9, 10, 11, 1000].map(|attempts| pause_after(attempts).as_secs());
        assert_eq!(pauses, [2, 4, 8, 512, 900, 900, 900]);
    }
}
