//! Blobs of a folder taken into another one, for a backup. They never change once they have their name, so a server may go on meanwhile.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::folder::{folder_of, lock_folder};
use crate::{Config, Error};

/// How a backup gets its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Take {
    /// Bytes of their own, which survive the loss of the original.
    #[default]
    Copy,
    /// A second name for the same bytes, on the same file system: at once, and safe from deletion, not from a broken disk.
    Link,
}

/// The folder that a server's bytes lie in.
pub(crate) fn root_of(config: &Config) -> Result<PathBuf, Error> {
    match &config.storage {
        None => Ok(config.data.clone()),
        Some(url) if url.scheme() == "file" => folder_of(url),
        Some(_) => {
            let reason = "only bytes in a folder can be taken like this".to_owned();
            Err(Error::Config { setting: "storage", reason })
        }
    }
}

/// Makes the folder `to`, and keeps servers and other backups out of it.
pub(crate) fn lock_target(to: &Path) -> Result<File, Error> {
    lock_folder(to, false)
}

/// Makes the bytes under `key` durable below `to` too. None if they are not there; otherwise whether anything had to be done.
pub(crate) fn take(
    from: &Path,
    to: &Path,
    key: &str,
    size_bytes: u64,
    how: Take,
) -> io::Result<Option<bool>> {
    let (source, target) = (from.join(key), to.join(key));
    if std::fs::metadata(&target).is_ok_and(|there| there.len() == size_bytes) {
        return Ok(Some(false));
    }
    let folder = target.parent().unwrap_or(to);
    std::fs::create_dir_all(folder)?;
    // A name of its own until it is whole, so that what has the name is whole.
    let fresh = target.with_extension("part");
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let taken = match how {
        Take::Link => std::fs::hard_link(&source, &fresh),
        Take::Copy => std::fs::copy(&source, &fresh).and_then(|_| File::open(&fresh)?.sync_all()),
    };
    match taken {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        taken => taken?,
    }
    let got = std::fs::metadata(&fresh)?.len();
    if got != size_bytes {
        std::fs::remove_file(&fresh)?;
        return Err(io::Error::other(format!("it has {got} bytes, not {size_bytes}")));
    }
    std::fs::rename(&fresh, &target)?;
    File::open(folder)?.sync_all()?;
    Ok(Some(true))
}
