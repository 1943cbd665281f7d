//! `lode runner`: the process of one model.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Runner {
    /// The socket to serve on
    #[arg(long)]
    pub(crate) socket: PathBuf,
}
