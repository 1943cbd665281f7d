//! Arguments of `lode migrate`.

use clap::Args;

use super::shared::DataLocation;

#[derive(Debug, Args)]
#[command(after_help = "\
Moves a server with SQLite and a local blob folder. Stop the server first, or serve it with
--read-only during the migration. The command verifies the digest of each blob and compares the
number of rows. If it is interrupted, repeat it: it resumes where it stopped.

Example:
  lode migrate --data /srv/lode \\
    --to-database postgres://lode@db/lode --to-storage s3://bucket/lode")]
pub(crate) struct Migrate {
    /// Target database; it must be empty
    #[arg(long, value_name = "URL")]
    pub(crate) to_database: String,
    /// Target blob store
    #[arg(long, value_name = "URL")]
    pub(crate) to_storage: String,
    #[command(flatten)]
    pub(crate) from: DataLocation,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
