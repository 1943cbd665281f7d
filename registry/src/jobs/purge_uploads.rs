//! Drops uploads that rested too long, and bytes under `uploads/` that no upload claims (a crash left them).

use futures::TryStreamExt;

use crate::blobs::key;
use crate::store::{millis, now_ms};
use crate::{Error, Registry};

const BATCH: u32 = 100;
/// Bytes without an upload may be a manifest on its way in; those are fresh.
const SETTLED_MS: i64 = 60 * 60 * 1000;

pub(super) async fn run(registry: &Registry) -> Result<(), Error> {
    let cutoff = now_ms().saturating_sub(millis(registry.config().upload_expiry));
    loop {
        let expired = registry.store().upload_expire(cutoff, BATCH).await?;
        if expired.is_empty() {
            break;
        }
        for (id, store_key) in expired {
            tracing::info!(%id, "abandoned upload dropped");
            registry.upload_drop(&store_key).await?;
        }
    }
    let mut files = registry.blobs().list(key::UPLOADS);
    while let Some(file) = files.try_next().await? {
        let settled = file.modified_ms < now_ms().saturating_sub(SETTLED_MS);
        if settled && !registry.store().upload_has_key(&file.key).await? {
            tracing::info!(
                key = file.key,
                size_bytes = file.size_bytes,
                "bytes of a forgotten upload dropped"
            );
            registry.upload_drop(&file.key).await?;
        }
    }
    Ok(())
}
