//! A small disk: a file system in memory, which only root can mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::succeed;

/// A mounted file system; it goes with this.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one of this size.
    ///
    /// # Panics
    ///
    /// When that is not allowed.
    #[must_use]
    pub fn mount(path: PathBuf, mebibytes: u32) -> Self {
        fs::create_dir_all(&path).expect("a folder to mount it on");
        succeed(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
                .arg(&path),
        );
        Self(path)
    }

    /// Where it is.
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
