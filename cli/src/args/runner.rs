//! Arguments of `lode runner`: the process of one loaded model, or its text helper.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Runner {
    /// Socket to serve on
    #[arg(long, required_unless_present = "text")]
    pub(crate) socket: Option<PathBuf>,
    /// Run as the text helper of a runner; standard input is the socket to it
    #[arg(long, conflicts_with = "socket")]
    pub(crate) text: bool,
}
