//! Transfers the blobs of a folder into another one, for a backup. Blobs are immutable, so a server may keep
//! running.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::files::{folder_of, lock_folder};
use super::object::BlobLocation;
use crate::{Config, OpenError};

/// How a backup transfers blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackupMode {
    /// Copies the bytes, so that they survive the loss of the original.
    #[default]
    Copy,
    /// Makes hard links on the same file system: instant, and safe from deletion, but not from a broken disk.
    Link,
}

/// The folder of a server's blobs.
pub(crate) fn blob_root(config: &Config) -> Result<PathBuf, OpenError> {
    match &config.storage {
        None => Ok(config.data.clone()),
        Some(url) if url.scheme() == "file" => folder_of(url),
        Some(_) => {
            let reason = "only blobs in a folder can be backed up".to_owned();
            Err(OpenError::Config { setting: "storage", reason })
        }
    }
}

/// Creates the folder `to`, and locks it against servers and other backups.
pub(crate) fn lock_target(to: &Path) -> Result<File, OpenError> {
    lock_folder(to, false)
}

/// Makes the bytes of a blob durable below `to`. None if the source does not exist; otherwise whether anything
/// had to be done.
pub(crate) fn take(from: &Path, to: &Path, blob: &BlobLocation, how: BackupMode) -> io::Result<Option<bool>> {
    let (source, target) = (from.join(&blob.store_key), to.join(&blob.store_key));
    let size_bytes = blob.size_bytes;
    if std::fs::metadata(&target).is_ok_and(|there| there.len() == size_bytes) {
        return Ok(Some(false));
    }
    let folder = target.parent().unwrap_or(to);
    std::fs::create_dir_all(folder)?;
    // A temporary name until it is complete, so that a blob's file is always complete.
    let fresh = target.with_extension("part");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let taken = match how {
        BackupMode::Link => std::fs::hard_link(&source, &fresh),
        BackupMode::Copy => std::fs::copy(&source, &fresh).and_then(|_| File::open(&fresh)?.sync_all()),
    };
    match taken {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        taken => taken?,
    }
    let got = std::fs::metadata(&fresh)?.len();
    if got != size_bytes {
        std::fs::remove_file(&fresh)?;
        return Err(io::Error::other(format!("expected {size_bytes} bytes, got {got}")));
    }
    std::fs::rename(&fresh, &target)?;
    File::open(folder)?.sync_all()?;
    Ok(Some(true))
}
