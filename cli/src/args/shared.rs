//! Arguments that several commands have.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable lines
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// Reads `KEY=VALUE`.
pub(super) fn annotation(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as org.opencontainers.image.version=1.2"),
    }
}

/// The location of a server's data.
#[derive(Debug, Args)]
pub(crate) struct DataLocation {
    /// The server's data folder [default: ./lode-data]
    #[arg(long, env = "LODE_DATA", value_name = "DIR", hide_env_values = true)]
    pub(crate) data: Option<PathBuf>,
    /// The server's database, if it is not in the data folder
    #[arg(long, env = "LODE_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// The server's blob store, if it is not in the data folder
    #[arg(long, env = "LODE_STORAGE", value_name = "URL", hide_env_values = true)]
    pub(crate) storage: Option<String>,
    /// The server's TOML settings file
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}
