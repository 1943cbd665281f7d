//! A backup of a registry with an embedded database, taken while its server runs: a snapshot of the database
//! and every blob that it lists. The result is a data folder; to restore, serve a copy of it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lode_client::Progress;
use lode_model::digest::Digest;
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::blobs::{BackupMode, blob_root, key, lock_target, take};
use crate::store::{Store, database_file, snapshot};
use crate::{Config, Error, OpenError};

/// A collection may remove a blob after the database was copied and before the blob is. Then the database is
/// copied again, at most this often.
const MAX_DATABASE_COPIES: u32 = 50;
/// How many times, and at which interval, a listed blob without bytes is checked before it counts as damage.
const DAMAGE_CHECKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);
const PAGE: i64 = 1000;
/// Folder of the database copy until all its blobs are copied.
const STAGING_FOLDER: &str = "fresh";
/// Marks a folder as a backup, which the next backup may overwrite.
const BACKUP_MARKER: &str = "lode.backup";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// Contents of the backup.
    pub blobs: u64,
    pub size_bytes: u64,
    /// The part that an earlier backup in the same folder did not have.
    pub blobs_copied: u64,
    pub copied_bytes: u64,
    /// Blobs of an earlier backup that the registry no longer has.
    pub blobs_removed: u64,
}

/// Backs up the registry of `config` into the folder `to`. `begin` receives the total size in bytes.
pub async fn backup(
    config: &Config,
    to: &Path,
    how: BackupMode,
    begin: impl Fn(u64) -> Arc<dyn Progress>,
) -> Result<BackupReport, OpenError> {
    // 1. Find the source, and lock and mark the target.
    let index = database_file(config)?;
    let from = blob_root(config)?;
    check_outside(to, &config.data, &from)?;
    let _lock = lock_target(to)?;
    mark_as_backup(to)?;
    // 2. Copy the database, then the blobs that it lists. Later blobs are in neither; blobs removed in the
    // meantime are detected.
    let (mut tries, mut report) = (1, BackupReport::default());
    let store = loop {
        let store = copy_database(&index, to).await?;
        match copy_blobs(&store, &from, to, how, &begin, &mut report).await? {
            None => break store,
            Some(lost) => {
                store.close().await;
                if tries == MAX_DATABASE_COPIES || is_damaged(&index, &from, &lost).await? {
                    let missing = io::Error::from(io::ErrorKind::NotFound);
                    return Err(Error::io(format!("failed to read blob {lost}"), missing).into());
                }
                tries += 1;
            }
        }
    };
    // 3. Rename the database once all its blobs are there, and only then remove blobs that only the previous
    // one listed. Whenever this is interrupted, one of the two backups is complete.
    store.close().await;
    let folder = to.to_owned();
    let named = spawn_blocking(move || publish_database(&folder)).await.map_err(|_| Error::Interrupted)?;
    named.map_err(|e| Error::io(format!("failed to write {}", to.display()), e))?;
    let store = Store::open_unmigrated(&to.join("lode.db")).await?;
    let removed = prune_blobs(&store, to).await;
    store.close().await;
    report.blobs_removed = removed?;
    Ok(report)
}

/// Refuses a target inside a folder of the registry: the backup would be lost together with it. The data
/// folder itself is refused later, as one that is in use or is not a backup.
fn check_outside(to: &Path, data: &Path, blobs: &Path) -> Result<(), OpenError> {
    // The target need not exist yet.
    let target =
        std::path::absolute(to).map_err(|e| Error::io(format!("failed to find {}", to.display()), e))?;
    let target = target
        .ancestors()
        .find_map(|existing| Some(existing.canonicalize().ok()?.join(target.strip_prefix(existing).ok()?)));
    let (Some(target), data) = (target, data.canonicalize().ok()) else { return Ok(()) };
    let folders = [data.clone(), blobs.canonicalize().ok()];
    match folders.into_iter().flatten().find(|folder| target.starts_with(folder)) {
        Some(folder) if data.as_ref() != Some(&target) => {
            let reason = format!(
                "{} is inside the registry's folder {}; choose another folder",
                to.display(),
                folder.display()
            );
            Err(OpenError::Config { setting: "--to", reason })
        }
        _ => Ok(()),
    }
}

/// Marks the folder as a backup, unless it contains a registry: that would lose its database, and all blobs
/// that are not in the source.
fn mark_as_backup(to: &Path) -> Result<(), OpenError> {
    let (mark, index) = (to.join(BACKUP_MARKER), to.join("lode.db"));
    if index.exists() && !mark.exists() {
        let reason =
            format!("{} contains a registry that is not a backup; choose another folder", to.display());
        return Err(OpenError::Config { setting: "--to", reason });
    }
    File::create(&mark).map_err(|e| Error::io(format!("failed to write {}", mark.display()), e))?;
    Ok(())
}

/// Removes the mark: once served, a backup is a registry of its own.
pub(crate) fn remove_backup_marker(data: &Path) -> Result<(), Error> {
    match std::fs::remove_file(data.join(BACKUP_MARKER)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("failed to open {}", data.display()), error))
        }
        _ => Ok(()),
    }
}

/// Whether the blob is listed but its bytes are missing. The same content may have been removed and pushed
/// again since the database was copied, even between the two checks here.
async fn is_damaged(index: &Path, from: &Path, digest: &Digest) -> Result<bool, Error> {
    for _ in 0..DAMAGE_CHECKS {
        let now = Store::open_unmigrated(index).await?;
        let listed = now.blob_live(digest).await?;
        now.close().await;
        let Some((size_bytes, key)) = listed else { return Ok(false) };
        if tokio::fs::metadata(from.join(key)).await.is_ok_and(|metadata| metadata.len() == size_bytes) {
            return Ok(false);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(true)
}

async fn copy_database(index: &Path, to: &Path) -> Result<Store, Error> {
    let fresh = to.join(STAGING_FOLDER);
    let cleared = match std::fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir(&fresh),
    };
    cleared.map_err(|e| Error::io(format!("failed to write {}", fresh.display()), e))?;
    let file = fresh.join("lode.db");
    snapshot(index, &file).await?;
    let store = Store::open_unmigrated(&file).await?;
    store.sessions_delete().await?;
    Ok(store)
}

/// Copies the blobs that the database lists; returns the first one that is missing.
async fn copy_blobs(
    store: &Store,
    from: &Path,
    to: &Path,
    how: BackupMode,
    begin: &impl Fn(u64) -> Arc<dyn Progress>,
    report: &mut BackupReport,
) -> Result<Option<Digest>, Error> {
    (report.blobs, report.size_bytes) = store.blobs_total().await?;
    let progress = begin(report.size_bytes);
    let mut after = String::new();
    loop {
        let blobs = store.blobs_live(&after, PAGE).await?;
        let Some(last) = blobs.last() else { return Ok(None) };
        after = last.digest.as_str().to_owned();
        for blob in blobs {
            let (from, to, copied) = (from.to_owned(), to.to_owned(), blob.clone());
            let taken = spawn_blocking(move || take(&from, &to, &copied, how)).await;
            match taken
                .map_err(|_| Error::Interrupted)?
                .map_err(|e| Error::io(format!("failed to copy {}", blob.store_key), e))?
            {
                None => return Ok(Some(blob.digest)),
                Some(true) => {
                    report.blobs_copied += 1;
                    report.copied_bytes += blob.size_bytes;
                }
                Some(false) => {}
            }
            progress.transferred(blob.size_bytes);
        }
    }
}

/// Removes blobs of an earlier backup that this one does not list.
async fn prune_blobs(store: &Store, to: &Path) -> Result<u64, Error> {
    let mut removed = 0;
    for algorithm in key::ALGORITHMS {
        let folder = to.join(key::BLOBS).join(algorithm.as_str());
        let failed = |e| Error::io(format!("failed to read {}", folder.display()), e);
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
            let Some(digest) = key::digest_of(&format!("{}/{algorithm}/{name}", key::BLOBS)) else {
                continue;
            };
            if store.blob_live(&digest).await?.is_none() {
                std::fs::remove_file(folder.join(name)).map_err(failed)?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

fn publish_database(to: &Path) -> io::Result<()> {
    let (fresh, index) = (to.join(STAGING_FOLDER).join("lode.db"), to.join("lode.db"));
    File::open(&fresh)?.sync_all()?;
    for journal in ["lode.db-wal", "lode.db-shm"] {
        match std::fs::remove_file(to.join(journal)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(&fresh, &index)?;
    std::fs::remove_dir_all(to.join(STAGING_FOLDER))?;
    File::open(to)?.sync_all()
}
