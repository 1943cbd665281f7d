//! Writes the search rows that are missing or outdated. Every change of tags writes its own rows; this job does it for
//! what earlier versions have stored, and for pulls that are no longer recent. It also lists the origins of models that
//! earlier versions have read. It looks at some repositories at a time, so it may stop anywhere and run twice.

use std::time::Duration;

use crate::error::chain;
use crate::{Error, Registry};

/// How often all repositories are checked, besides the start.
const INTERVAL: Duration = Duration::from_secs(60 * 60);
const REPOSITORY_BATCH: i64 = 256;
const MODEL_BATCH: i64 = 256;

pub(super) fn start(registry: &Registry) {
    let registry = registry.clone();
    registry.clone().start(async move {
        loop {
            if let Err(error) = run(&registry).await {
                tracing::warn!(error = chain(&error), "failed to refresh the rows of the search; will retry");
            }
            tokio::time::sleep(INTERVAL).await;
        }
    });
}

pub(crate) async fn run(registry: &Registry) -> Result<(), Error> {
    let store = registry.store();
    while store.bases_list(MODEL_BATCH).await? > 0 {}
    let (mut after, mut refreshed) = (String::new(), 0);
    loop {
        let (stale, last) = store.search_stale(&after, REPOSITORY_BATCH).await?;
        store.search_refresh_all(&stale).await?;
        refreshed += stale.len();
        match last {
            Some(last) => after = last,
            None => break,
        }
    }
    if refreshed > 0 {
        tracing::info!(repositories = refreshed, "refreshed the rows of the search");
    }
    Ok(())
}
