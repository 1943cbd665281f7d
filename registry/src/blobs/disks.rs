//! Where the bytes are, for operators: the kind and place of the storage, and the free space of folders.

use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use super::files::folder_of;
use super::remote;
use super::storage::{Blobs, is_data_used};
use crate::Config;
use crate::metrics::Disk;

/// The folders whose free space matters, with their names in metrics.
fn folders(config: &Config) -> Vec<(&'static str, PathBuf)> {
    let data = is_data_used(config).then(|| ("data", config.data.clone()));
    let storage = config.storage.as_ref().filter(|url| url.scheme() == "file");
    let storage = storage.and_then(|url| folder_of(url).ok()).map(|folder| ("storage", folder));
    data.into_iter().chain(storage).collect()
}

/// The free space of the file system of a folder, for a user without privileges.
fn disk(folder: &'static str, path: &Path) -> Option<Disk> {
    let found = rustix::fs::statvfs(path).ok()?;
    Some(Disk {
        folder,
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        size_bytes: found.f_blocks.saturating_mul(found.f_frsize),
    })
}

impl Blobs {
    /// The free space of the data folder, and of a storage in another folder.
    pub(crate) async fn disks(&self, config: &Config) -> Vec<Disk> {
        let folders = folders(config);
        // A file system on a network may respond late.
        let read = spawn_blocking(move || {
            folders.iter().filter_map(|(name, path)| disk(name, path)).collect::<Vec<_>>()
        });
        read.await.unwrap_or_default()
    }

    /// The kind of the storage and its place: `folder` and a path, or a scheme such as `s3` and a URL.
    pub(crate) fn location(&self, config: &Config) -> (String, String) {
        match &config.storage {
            Some(url) if url.scheme() != "file" => (url.scheme().to_owned(), remote::place(url)),
            Some(url) => {
                let path = folder_of(url).map(|folder| folder.display().to_string());
                ("folder".to_owned(), path.unwrap_or_else(|_| url.path().to_owned()))
            }
            None => {
                let path = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
                ("folder".to_owned(), path.display().to_string())
            }
        }
    }
}
