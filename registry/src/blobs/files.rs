//! File operations that the folder store, its writer and backups share.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;
use url::Url;

use crate::{Error, OpenError};

/// The folder of a `file:///PATH` URL.
pub(super) fn folder_of(url: &Url) -> Result<PathBuf, OpenError> {
    let reason = "expected file:///PATH".to_owned();
    url.to_file_path().map_err(|()| OpenError::Config { setting: "storage", reason })
}

/// Runs file work on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    spawn_blocking(work).await.map_err(|_| Error::Interrupted)?.map_err(|e| Error::io(what, e))
}

/// Locks a folder against other servers for as long as the file is open. Read-only servers share the lock.
pub(super) fn lock_folder(folder: &Path, read_only: bool) -> Result<File, OpenError> {
    let failed = |e| Error::io(format!("failed to lock {}", folder.display()), e);
    create_private(folder).map_err(failed)?;
    let file = File::create(folder.join("lode.lock")).map_err(failed)?;
    let locked = if read_only { file.try_lock_shared() } else { file.try_lock() };
    match locked {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::FolderInUse { path: folder.to_owned() }),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error).into()),
    }
}

/// Creates a folder with mode 0700, and its parents with the default mode. An existing folder keeps its mode.
pub(super) fn create_private(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        created => created,
    }
}

pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
