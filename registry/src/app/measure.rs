//! Measurements in the background, so that `/metrics` and the status page read no long table: the size of the
//! content, what waits for a collection, the free space, and whether this server is ready.

use std::time::{Duration, Instant};

use super::Registry;
use crate::Error;
use crate::error::chain;
use crate::metrics::{ContentSize, Measured};
use crate::store::SizedTable;
use crate::time::now_ms;

/// How often all but the size of the content is measured.
const INTERVAL: Duration = Duration::from_secs(15);
/// How often the size of the content is measured at most.
const SIZE_INTERVAL: Duration = Duration::from_secs(60);
/// The measurement of the size works for at most one part of this many of the time.
const SHARE: u32 = 10;

impl Registry {
    /// Measures while the registry runs.
    pub(crate) fn start_measuring(&self) {
        let this = self.clone();
        self.start(async move {
            loop {
                this.measure_state().await;
                tokio::time::sleep(INTERVAL).await;
            }
        });
        let this = self.clone();
        self.start(async move {
            loop {
                let started = Instant::now();
                if let Err(error) = this.measure_content().await {
                    tracing::debug!(error = chain(&error), "failed to measure the content; will retry");
                }
                tokio::time::sleep(SIZE_INTERVAL.max(started.elapsed())).await;
            }
        });
    }

    /// The last measurements of this process.
    pub(crate) fn measured(&self) -> Measured {
        self.measurements.last()
    }

    /// Measures what costs little.
    pub(crate) async fn measure_state(&self) {
        let missing = self.ready().await.err().unwrap_or_default();
        self.report_replica(missing.is_empty()).await;
        // While the database is unavailable, the last numbers stay.
        let waiting = self.store.waiting_removals().await.ok();
        let disks = self.blobs.disks(&self.config).await;
        self.measurements.update(|measured| {
            measured.missing = Some(missing);
            measured.waiting = waiting.or(measured.waiting);
            measured.disks = disks;
        });
    }

    /// Adds up the size of the content, in pages, with pauses between them.
    pub(crate) async fn measure_content(&self) -> Result<(), Error> {
        let (blobs, stored_bytes) = self.add_up(SizedTable::Blobs).await?;
        let (_, manifest_bytes) = self.add_up(SizedTable::Manifests).await?;
        let (_, referred_bytes) = self.add_up(SizedTable::References).await?;
        let logical_bytes = manifest_bytes.saturating_add(referred_bytes);
        let content = ContentSize { blobs, stored_bytes, logical_bytes, measured_at: now_ms() };
        self.measurements.update(|measured| measured.content = Some(content));
        Ok(())
    }

    async fn add_up(&self, table: SizedTable) -> Result<(u64, u64), Error> {
        let (mut rows, mut size_bytes, mut after) = (0_u64, 0_u64, Vec::new());
        loop {
            let started = Instant::now();
            let page = self.store.sized_page(table, &after).await?;
            rows = rows.saturating_add(page.rows);
            size_bytes = size_bytes.saturating_add(page.size_bytes);
            match page.last {
                Some(last) => after = last,
                None => return Ok((rows, size_bytes)),
            }
            tokio::time::sleep(started.elapsed() * SHARE).await;
        }
    }
}
