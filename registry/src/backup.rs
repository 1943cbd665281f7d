//! A backup of an embedded registry, taken while its server goes on: the index as it was at one moment, and every blob that it lists.
//! The folder it makes is a data folder; serving a copy of it is the restore.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lode_client::Progress;
use lode_model::digest::Digest;
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::blobs::{Take, key, lock_target, root_of, take};
use crate::store::{Store, index_file, snapshot};
use crate::{Config, Error};

/// A collection may remove a blob between the index's copy and its own. Then the index is copied afresh, at most so often.
const TRIES: u32 = 50;
/// How often, and how far apart, a listed blob without bytes is looked at before it counts as damage.
const LOOKS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);
const PAGE: i64 = 1000;
/// The index's copy until everything that it lists is there.
const FRESH: &str = "fresh";
/// Says that a folder is a backup, and may be written over by the next one.
const MARK: &str = "lode.backup";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackupReport {
    /// What the backup holds.
    pub blobs: u64,
    pub size_bytes: u64,
    /// What was not there from an earlier backup in the same folder.
    pub blobs_copied: u64,
    pub copied_bytes: u64,
    /// Blobs of an earlier backup that the registry no longer has.
    pub blobs_removed: u64,
}

/// Backs up the registry that `config` describes into the folder `to`. `begin` is told the bytes in all.
pub async fn backup(
    config: &Config,
    to: &Path,
    how: Take,
    begin: impl Fn(u64) -> Arc<dyn Progress>,
) -> Result<BackupReport, Error> {
    // 1. What can be backed up like this, and where to.
    let index = index_file(config)?;
    let from = root_of(config)?;
    let _lock = lock_target(to)?;
    mark(to)?;
    // 2. The index first, then what it lists: what comes later is in neither, and what goes meanwhile is noticed.
    let (mut tries, mut report) = (1, BackupReport::default());
    let store = loop {
        let store = index_copy(&index, to).await?;
        match blobs_copy(&store, &from, to, how, &begin, &mut report).await? {
            None => break store,
            Some(lost) => {
                store.close().await;
                if tries == TRIES || is_damaged(&index, &from, &lost).await? {
                    let missing = io::Error::from(io::ErrorKind::NotFound);
                    return Err(Error::io(format!("reading blob {lost}"), missing));
                }
                tries += 1;
            }
        }
    };
    // 3. The index gets its name once all of that is there, and what only the one before listed goes after that: whenever this is
    //    cut short, one of the two is whole.
    store.close().await;
    let folder = to.to_owned();
    let named = spawn_blocking(move || name_index(&folder)).await.map_err(|_| Error::Interrupted)?;
    named.map_err(|e| Error::io(format!("writing {}", to.display()), e))?;
    let store = Store::peek(&to.join("lode.db")).await?;
    let removed = blobs_prune(&store, to).await;
    store.close().await;
    report.blobs_removed = removed?;
    Ok(report)
}

/// Makes the folder a backup's, unless it holds a registry: that would lose its index, and all blobs that are not in this one.
fn mark(to: &Path) -> Result<(), Error> {
    let (mark, index) = (to.join(MARK), to.join("lode.db"));
    if index.exists() && !mark.exists() {
        let reason = format!("{} holds a registry and no backup; it would be overwritten", to.display());
        return Err(Error::Config { setting: "--to", reason });
    }
    File::create(&mark).map(drop).map_err(|e| Error::io(format!("writing {}", mark.display()), e))
}

/// What is served is a registry of its own from then on.
pub(crate) fn unmark(data: &Path) -> Result<(), Error> {
    match std::fs::remove_file(data.join(MARK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("opening {}", data.display()), error))
        }
        _ => Ok(()),
    }
}

/// Is the blob listed, and its bytes are not there? The same content may have gone and come again since the index was copied, and
/// may do so between the two looks.
async fn is_damaged(index: &Path, from: &Path, digest: &Digest) -> Result<bool, Error> {
    for _ in 0..LOOKS {
        let now = Store::peek(index).await?;
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

async fn index_copy(index: &Path, to: &Path) -> Result<Store, Error> {
    let fresh = to.join(FRESH);
    let cleared = match std::fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir(&fresh),
    };
    cleared.map_err(|e| Error::io(format!("writing {}", fresh.display()), e))?;
    let file = fresh.join("lode.db");
    snapshot(index, &file).await?;
    let store = Store::peek(&file).await?;
    store.sessions_forget().await?;
    Ok(store)
}

/// Copies what the index lists, up to a blob that is not there.
async fn blobs_copy(
    store: &Store,
    from: &Path,
    to: &Path,
    how: Take,
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
            let (from, to, key, size_bytes) =
                (from.to_owned(), to.to_owned(), blob.store_key, blob.size_bytes);
            let name = key.clone();
            let taken = spawn_blocking(move || take(&from, &to, &key, size_bytes, how)).await;
            match taken
                .map_err(|_| Error::Interrupted)?
                .map_err(|e| Error::io(format!("copying {name}"), e))?
            {
                None => return Ok(Some(blob.digest)),
                Some(true) => {
                    report.blobs_copied += 1;
                    report.copied_bytes += size_bytes;
                }
                Some(false) => {}
            }
            progress.moved(size_bytes);
        }
    }
}

/// Removes blobs of an earlier backup that this one does not list.
async fn blobs_prune(store: &Store, to: &Path) -> Result<u64, Error> {
    let mut removed = 0;
    for algorithm in key::ALGORITHMS {
        let folder = to.join(key::BLOBS).join(algorithm.as_str());
        let failed = |e| Error::io(format!("reading {}", folder.display()), e);
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

fn name_index(to: &Path) -> io::Result<()> {
    let (fresh, index) = (to.join(FRESH).join("lode.db"), to.join("lode.db"));
    File::open(&fresh)?.sync_all()?;
    for journal in ["lode.db-wal", "lode.db-shm"] {
        match std::fs::remove_file(to.join(journal)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(&fresh, &index)?;
    std::fs::remove_dir_all(to.join(FRESH))?;
    File::open(to)?.sync_all()
}
