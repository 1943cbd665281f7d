//! `lode migrate`: moving a server's index and blobs.

use clap::Args;

use super::Kept;

#[derive(Debug, Args)]
#[command(after_help = "\
Moves a server with SQLite and a folder. Stop it, or serve it with --read-only meanwhile. Every blob is read and its
digest compared; rows are counted on both sides. Interrupted, repeat the command: it goes on where it stopped.

Example:
  lode migrate --data /srv/lode --to-database postgres://lode@db/lode --to-storage s3://bucket/lode")]
pub(crate) struct Migrate {
    /// The database to move the index to, empty
    #[arg(long, value_name = "URL")]
    pub(crate) to_database: String,
    /// The storage to move the bytes to
    #[arg(long, value_name = "URL")]
    pub(crate) to_storage: String,
    #[command(flatten)]
    pub(crate) from: Kept,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
