//! Deletes uploads that were idle for too long, and files under `uploads/` that no upload claims (left by a
//! crash).

use futures::TryStreamExt;

use crate::blobs::key;
use crate::error::chain;
use crate::time::{millis, now_ms};
use crate::{Error, Registry};

const BATCH: u32 = 100;
/// A file without an upload may be a manifest that is being pushed; such files are young.
const SETTLED_MS: i64 = 60 * 60 * 1000;

pub(super) async fn run(registry: &Registry) -> Result<(), Error> {
    let cutoff = now_ms().saturating_sub(millis(registry.config().upload_expiry));
    loop {
        let mut ended = false;
        for row in registry.store().uploads_idle(cutoff, BATCH).await? {
            let id = row.id;
            match registry.upload_remove(row).await {
                Ok(true) => {
                    tracing::info!(%id, "expired upload deleted");
                    ended = true;
                }
                // Another request continued or deleted it at this moment.
                Ok(false) => {}
                // One failed deletion must not prevent the others.
                Err(error) => {
                    tracing::warn!(%id, error = chain(&error), "failed to delete expired upload; will retry")
                }
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
                "deleting file of an unknown upload"
            );
            if let Err(error) = registry.upload_file_delete_detached(&file.key).await {
                tracing::warn!(
                    key = file.key,
                    error = chain(&error),
                    "failed to delete file of an unknown upload; will retry"
                );
            }
        }
    }
    Ok(())
}

async fn is_claimed(registry: &Registry, key: &str) -> Result<bool, Error> {
    match key::upload_of(key) {
        Some(id) => Ok(registry.store().upload_find_any(id).await?.is_some()),
        None => registry.store().upload_has_key(key).await,
    }
}
