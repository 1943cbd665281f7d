//! A small disk: a tmpfs, which only root can mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run_successfully;

/// A mounted tmpfs. Dropping it unmounts the file system.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a tmpfs of this size.
    ///
    /// # Panics
    ///
    /// If mounting fails.
    #[must_use]
    pub fn mount(path: PathBuf, mebibytes: u32) -> Self {
        fs::create_dir_all(&path).expect("a folder to mount it on");
        run_successfully(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
                .arg(&path),
        );
        Self(path)
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
