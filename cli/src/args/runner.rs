//! `lode runner`: the process of one model, and the helper process that evaluates its text data.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Runner {
    /// The socket to serve on
    #[arg(long, required_unless_present = "text")]
    pub(crate) socket: Option<PathBuf>,
    /// Be the helper process of a runner, whose socket is standard input
    #[arg(long, conflicts_with = "socket")]
    pub(crate) text: bool,
}
