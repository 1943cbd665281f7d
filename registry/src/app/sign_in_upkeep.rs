//! Deletes expired state of sign-ins: sessions, unanswered requests of programs, and failures; and the request
//! counts of idle clients.

use std::time::Duration;

use super::Registry;
use super::devices::DEVICE_TIME;
use super::sign_in::{SESSION_IDLE_TIME, SESSION_TIME};
use crate::Error;
use crate::auth::throttle;
use crate::error::chain;
use crate::time::{millis, now_ms};

/// How often expired sessions and the like are deleted.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(600);
/// How often the request counts of idle clients are dropped.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);
/// How long listings show the expired tokens of publishers. Each run of a CI job creates one.
const PUBLISHED_TOKEN_HISTORY: Duration = Duration::from_secs(24 * 3600);

impl Registry {
    /// Deletes expired sessions, devices, failures and used values while the registry runs.
    pub(crate) fn start_sign_in_upkeep(&self) {
        let this = self.clone();
        self.start(async move {
            loop {
                if let Err(error) = this.sign_ins_expire().await {
                    tracing::warn!(error = chain(&error), "failed to delete expired sessions; will retry");
                }
                tokio::time::sleep(EXPIRE_INTERVAL).await;
            }
        });
    }

    /// Forgets idle clients while the registry runs.
    pub(crate) fn start_rate_upkeep(&self) {
        let this = self.clone();
        self.start(async move {
            loop {
                tokio::time::sleep(FORGET_INTERVAL).await;
                this.rate_limits().forget_idle();
            }
        });
    }

    async fn sign_ins_expire(&self) -> Result<(), Error> {
        let (store, now) = (self.store(), now_ms());
        store.sessions_expire(now - millis(SESSION_IDLE_TIME), now - millis(SESSION_TIME)).await?;
        store.devices_expire(now - millis(DEVICE_TIME)).await?;
        store.published_tokens_expire(now - millis(PUBLISHED_TOKEN_HISTORY)).await?;
        store.sign_ins_expire(now - millis(throttle::FAILURE_RETENTION), now).await
    }
}
