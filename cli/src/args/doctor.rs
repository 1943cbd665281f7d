//! Arguments of `lode doctor`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Reads the same variables and [worker] table as `lode worker`. The exit code is 1 if a GPU is asked for
(--device cuda) and cannot be used.

Examples:
  lode doctor
  lode doctor --device cuda:1 --json")]
pub(crate) struct Doctor {
    /// Compute device to check: auto, cpu, cuda or cuda:N
    #[arg(long, env = "LODE_DEVICE", value_name = "DEVICE", hide_env_values = true)]
    pub(crate) device: Option<String>,
    /// Folder for the cache of pulled blobs
    #[arg(long, env = "LODE_CACHE", value_name = "DIR", hide_env_values = true)]
    pub(crate) cache: Option<PathBuf>,
    /// TOML settings file
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
