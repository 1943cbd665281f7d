//! `lode backup`: a copy of a server's index and blobs.

use std::path::PathBuf;

use clap::Args;

use super::Kept;

#[derive(Debug, Args)]
#[command(after_help = "\
For a server with SQLite and a folder, on its own machine, running or not. The backup is a data folder: serve a copy of
it to restore. Repeated into the same folder, only what is new is copied.

Examples:
  lode backup --data /srv/lode --to /backup/lode
  lode backup --data /srv/lode --to /srv/snapshots/monday --link")]
pub(crate) struct Backup {
    /// The folder to write to
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) from: Kept,
    /// Give blobs a second name instead of copying them: at once, and on the same file system only
    #[arg(long)]
    pub(crate) link: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
