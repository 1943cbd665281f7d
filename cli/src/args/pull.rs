//! `lode pull`: fetching a model's files.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
A model that was imported unquantised comes back byte for byte. Interrupted, repeat the command: it goes on where it
stopped, and files that are there and right are left alone.

Examples:
  lode pull team/mini --to ./mini
  lode pull hub.local/team/mini@sha256:0123...")]
pub(crate) struct Pull {
    pub(crate) name: String,
    /// The folder to write to [default: the last part of the name]
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
