//! A registry moved to another database and another storage: every blob read, verified and stored there, then every row.
//! Repeated, it goes on where it stopped; the content of the old registry does not change.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use lode_client::Progress;
use lode_model::reference::Repository;
use serde::Serialize;

use super::{Body, BodyError, ChunkRange, Limits, Registry, open_idle};
use crate::auth::Caller;
use crate::blobs::root_of;
use crate::store::{Doomed, Moved, index_file};
use crate::{Config, Error};

const PAGE: i64 = 1000;
/// Blobs on their way at a time.
const AT_ONCE: usize = 8;
/// Where blobs are linked until the rows arrive that say where they belong.
const ON_THE_WAY: &str = "lode-migrate";
const IDENTITY: &str = "identity";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MigrateReport {
    /// An earlier run had done it all; this one did nothing.
    pub done_before: bool,
    pub blobs: u64,
    pub size_bytes: u64,
    /// What was not there from a run that was cut short.
    pub blobs_copied: u64,
    pub copied_bytes: u64,
    pub repositories: u64,
    pub manifests: u64,
    pub tags: u64,
}

/// Moves the registry of `from` to where `to` says. The old one may be served meanwhile, if only for reading; the new one is not
/// to be served before this is done. `begin` is told the bytes in all.
pub async fn migrate(
    from: Config,
    to: Config,
    begin: impl Fn(u64) -> Arc<dyn Progress>,
) -> Result<MigrateReport, Error> {
    // 1. The old one: it lies in files, which nobody writes to, or its folder is locked. A folder without an index would move as
    //    an empty registry, and the right one could not move in any more.
    index_file(&from)?;
    root_of(&from)?;
    let idle = |config| open_idle(config, Limits::default());
    let from = idle(Config { read_only: true, mirror: Vec::new(), ..from }).await?;
    // 2. The new one. A second run of this move at the same time finds its data folder locked.
    let data = from.config.data.join("migrate");
    let outcome =
        match idle(Config { data, read_only: false, mirror: Vec::new(), webhook: Vec::new(), ..to }).await {
            Ok(to) => {
                let moved = from.move_to(&to, begin).await;
                to.close().await;
                moved
            }
            Err(error) => Err(error),
        };
    from.close().await;
    outcome
}

impl Registry {
    async fn move_to(
        &self,
        to: &Registry,
        begin: impl Fn(u64) -> Arc<dyn Progress>,
    ) -> Result<MigrateReport, Error> {
        let mut report = MigrateReport::default();
        (report.blobs, report.size_bytes) = self.store.blobs_total().await?;
        // 1. An index that is empty, or that a run of this same move left unfinished.
        match to.store.move_claim(&self.server_key(IDENTITY).await?).await? {
            Moved::Open => {}
            Moved::Done => return Ok(MigrateReport { done_before: true, ..report }),
            Moved::Taken => {
                let reason = "the database to move to holds a registry already".to_owned();
                return Err(Error::Config { setting: "to-database", reason });
            }
        }
        // 2. The bytes.
        let progress = begin(report.size_bytes);
        let mut after = String::new();
        loop {
            let blobs = self.store.blobs_live(&after, PAGE).await?;
            let Some(last) = blobs.last() else { break };
            after = last.digest.as_str().to_owned();
            let mut copied = stream::iter(blobs)
                .map(|blob| async move {
                    let fresh = self.blob_move(to, &blob).await?;
                    Ok::<_, Error>((blob.size_bytes, fresh))
                })
                .buffer_unordered(AT_ONCE);
            while let Some((size_bytes, fresh)) = copied.try_next().await? {
                progress.moved(size_bytes);
                if fresh {
                    report.blobs_copied += 1;
                    report.copied_bytes += size_bytes;
                }
            }
        }
        // 3. The rows, all or none, and counted on both sides.
        let mut tx = to.store.begin().await?;
        for (table, rows) in tx.tables_replace(&self.store).await? {
            let got = tx.table_count(table).await?;
            if got != rows {
                return Err(Error::Corrupt {
                    what: "copy of a table",
                    value: format!("{table}: {got} of {rows} rows"),
                });
            }
            match table {
                "repositories" => report.repositories = rows,
                "manifests" => report.manifests = rows,
                "tags" => report.tags = rows,
                _ => {}
            }
        }
        let blobs = tx.table_count("blobs").await?;
        if blobs < report.blobs {
            let value = format!("blobs: {blobs} of {} rows", report.blobs);
            return Err(Error::Corrupt { what: "copy of a table", value });
        }
        tx.move_done().await?;
        tx.commit().await?;
        tracing::info!(
            blobs = report.blobs,
            manifests = report.manifests,
            tags = report.tags,
            "registry moved"
        );
        Ok(report)
    }

    /// Stores a blob there too, verified as it is read here. False if it was there.
    async fn blob_move(&self, to: &Registry, blob: &Doomed) -> Result<bool, Error> {
        if let Some((size_bytes, key)) = to.store.blob_live(&blob.digest).await?
            && size_bytes == blob.size_bytes
            && to.blobs.size(&key).await? == Some(size_bytes)
        {
            return Ok(false);
        }
        let bytes = self.blobs.read(&blob.store_key, 0..blob.size_bytes).await?;
        let body: Body = bytes.map_err(BodyError::from).boxed();
        let chunk = ChunkRange { range: None, length: Some(blob.size_bytes) };
        let way: Repository = ON_THE_WAY.parse().map_err(|_| Error::Interrupted)?;
        match to.blob_put(&Caller::Internal, &way, &blob.digest, chunk, body).await {
            Ok(_) => Ok(true),
            // What the old registry holds is not what it says: damage there, which must not be carried over.
            Err(Error::BodyCut(reason)) => {
                Err(Error::io(format!("reading blob {}", blob.digest), std::io::Error::other(reason)))
            }
            Err(error @ Error::DigestMismatch { .. }) => {
                Err(Error::io(format!("reading blob {}", blob.digest), std::io::Error::other(error)))
            }
            Err(error) => Err(error),
        }
    }
}
