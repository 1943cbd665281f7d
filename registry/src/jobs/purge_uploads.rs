//! Drops uploads that rested too long, and bytes under `uploads/` that no upload claims (a crash left them).

use futures::TryStreamExt;

use crate::blobs::key;
use crate::error::chain;
use crate::store::{millis, now_ms};
use crate::{Error, Registry};

const BATCH: u32 = 100;
/// Bytes without an upload may be a manifest on its way in; those are fresh.
const SETTLED_MS: i64 = 60 * 60 * 1000;

pub(super) async fn run(registry: &Registry) -> Result<(), Error> {
    let cutoff = now_ms().saturating_sub(millis(registry.config().upload_expiry));
    loop {
        let mut ended = false;
        for row in registry.store().uploads_resting(cutoff, BATCH).await? {
            let id = row.id;
            match registry.upload_end(row).await {
                Ok(true) => {
                    tracing::info!(%id, "abandoned upload dropped");
                    ended = true;
                }
                // Somebody else goes on with it, or dropped it, at this very moment.
                Ok(false) => {}
                // One that cannot be dropped must not keep the others.
                Err(error) => tracing::warn!(%id, error = chain(&error), "abandoned upload stays for now"),
            }
        }
        if !ended {
            break;
        }
    }
    let mut files = registry.blobs().list(key::UPLOADS);
    while let Some(file) = files.try_next().await? {
        let settled = file.modified_ms < now_ms().saturating_sub(SETTLED_MS);
        if settled && !is_claimed(registry, &file.key).await? {
            tracing::info!(
                key = file.key,
                size_bytes = file.size_bytes,
                "dropping bytes of a forgotten upload"
            );
            if let Err(error) = registry.upload_drop(&file.key).await {
                tracing::warn!(
                    key = file.key,
                    error = chain(&error),
                    "bytes of a forgotten upload stay for now"
                );
            }
        }
    }
    Ok(())
}

async fn is_claimed(registry: &Registry, key: &str) -> Result<bool, Error> {
    match key::upload_of(key) {
        Some(id) => Ok(registry.store().upload_find_anywhere(id).await?.is_some()),
        None => registry.store().upload_has_key(key).await,
    }
}
