//! Arguments of `lode backup`.

use std::path::PathBuf;

use clap::Args;

use super::shared::DataLocation;

#[derive(Debug, Args)]
#[command(after_help = "\
Works for servers with SQLite and a local blob folder, on the server's own machine, while the
server runs or is stopped. The backup is a complete data folder: to restore it, serve a copy.
A repeated backup into the same folder copies only new blobs.

Examples:
  lode backup --data /srv/lode --to /backup/lode
  lode backup --data /srv/lode --to /srv/snapshots/monday --link")]
pub(crate) struct Backup {
    /// Folder to write the backup to
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) from: DataLocation,
    /// Hard-link blobs instead of copying them: immediate, but only within one file system
    #[arg(long)]
    pub(crate) link: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
