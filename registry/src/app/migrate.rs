//! Moves a registry to another database and another storage: every blob is read, verified and stored there,
//! then every row is copied. A repeated move continues where it stopped; the content of the old registry does
//! not change.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use lode_client::Progress;
use lode_model::reference::Repository;
use serde::Serialize;

use super::{Body, ChunkRange, Limits, Registry, open_idle};
use crate::auth::Caller;
use crate::blobs::BlobLocation;
use crate::blobs::blob_root;
use crate::store::{MoveState, database_file};
use crate::{BodyError, Config, Error, OpenError};

const PAGE: i64 = 1000;
/// How many blobs are copied at a time.
const MAX_CONCURRENT_BLOBS: usize = 8;
/// The repository that links the copied blobs until the rows of their repositories are copied.
const COPY_REPOSITORY: &str = "lode-migrate";
const IDENTITY: &str = "identity";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MigrateReport {
    /// An earlier run had finished the move; this one did nothing.
    pub done_before: bool,
    pub blobs: u64,
    pub size_bytes: u64,
    /// The blobs that an interrupted run had not copied yet.
    pub blobs_copied: u64,
    pub copied_bytes: u64,
    pub repositories: u64,
    pub manifests: u64,
    pub tags: u64,
}

/// Moves the registry of `from` to that of `to`. Meanwhile the old one may be served read-only; the new one
/// must not be served before this is done. `begin` receives the total number of bytes.
pub async fn migrate(
    from: Config,
    to: Config,
    begin: impl Fn(u64) -> Arc<dyn Progress>,
) -> Result<MigrateReport, OpenError> {
    // 1. Open the old one. Its files have no writer, or its folder is locked. A folder without a database
    //    would move as an empty registry, and the right one could no longer be moved.
    database_file(&from)?;
    blob_root(&from)?;
    let idle = |config| open_idle(config, Limits::default());
    let from = idle(Config { read_only: true, mirror: Vec::new(), ..from }).await?;
    // 2. Open the new one. A concurrent second run of this move finds its data folder locked.
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
    ) -> Result<MigrateReport, OpenError> {
        let mut report = MigrateReport::default();
        (report.blobs, report.size_bytes) = self.store.blobs_total().await?;
        // 1. Claim a database that is empty, or that an earlier run of this move left unfinished.
        match to.store.move_claim(&self.server_key(IDENTITY).await?).await? {
            MoveState::Open => {}
            MoveState::Done if to.has_listed_blobs().await? => {
                return Ok(MigrateReport { done_before: true, ..report });
            }
            MoveState::Done => {
                let reason = "the migration into the target database is complete, but this storage has none of \
                              the blobs that the database lists";
                return Err(OpenError::Config { setting: "to-storage", reason: reason.to_owned() });
            }
            MoveState::NotEmpty => {
                let reason = "the target database already contains a registry".to_owned();
                return Err(OpenError::Config { setting: "to-database", reason });
            }
        }
        // 2. Copy the bytes.
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
                .buffer_unordered(MAX_CONCURRENT_BLOBS);
            while let Some((size_bytes, fresh)) = copied.try_next().await? {
                progress.transferred(size_bytes);
                if fresh {
                    report.blobs_copied += 1;
                    report.copied_bytes += size_bytes;
                }
            }
        }
        // 3. Copy the rows in one transaction, and compare the counts.
        let mut tx = to.store.begin_long().await?;
        for (table, rows) in tx.tables_replace(&self.store).await? {
            let got = tx.table_count(table).await?;
            if got != rows {
                let value = format!("{table}: {got} of {rows} rows");
                return Err(Error::Corrupt { what: "copy of a table", value }.into());
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
            return Err(Error::Corrupt { what: "copy of a table", value }.into());
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

    /// Copies a blob and verifies it while reading. Returns false if the target already has it.
    async fn blob_move(&self, to: &Registry, blob: &BlobLocation) -> Result<bool, Error> {
        if let Some((size_bytes, key)) = to.store.blob_live(&blob.digest).await?
            && size_bytes == blob.size_bytes
            && to.blobs.size(&key).await? == Some(size_bytes)
        {
            return Ok(false);
        }
        let bytes = self.blobs.read(&blob.store_key, 0..blob.size_bytes).await?;
        let body: Body = bytes.map_err(BodyError::from).boxed();
        let chunk = ChunkRange { range: None, length: Some(blob.size_bytes) };
        let way: Repository = COPY_REPOSITORY.parse().expect("the constant is a repository name");
        match to.blob_put(&Caller::INTERNAL, &way, &blob.digest, chunk, body).await {
            Ok(_) => Ok(true),
            // The blob is damaged in the old registry and must not be copied.
            Err(Error::BodyInterrupted(reason)) => {
                Err(Error::io(format!("reading blob {}", blob.digest), std::io::Error::other(reason)))
            }
            Err(error @ Error::DigestMismatch { .. }) => {
                Err(Error::io(format!("reading blob {}", blob.digest), std::io::Error::other(error)))
            }
            Err(error) => Err(error),
        }
    }
}
