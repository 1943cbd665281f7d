//! Arguments of `lode pull`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
The files of a model that was imported without quantisation are restored byte for byte. If the
command is interrupted, repeat it: it resumes where it stopped and keeps files that are already
complete and correct.

Examples:
  lode pull team/mini --to ./mini
  lode pull hub.local/team/mini@sha256:0123...")]
pub(crate) struct Pull {
    /// Model or artifact: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Folder to write to [default: the last part of the repository name]
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
