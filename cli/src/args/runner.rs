//! Arguments of `lode runner`: the process of one loaded model, or its text helper.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Runner {
    /// Socket to serve on
    #[arg(long, required_unless_present_any = ["text", "probe"])]
    pub(crate) socket: Option<PathBuf>,
    /// Run as the text helper of a runner; standard input is the socket to it
    #[arg(long, conflicts_with = "socket")]
    pub(crate) text: bool,
    /// Look at the GPUs, as this JSON object requests, and print a JSON object
    #[arg(long, conflicts_with_all = ["socket", "text"], value_name = "REQUEST")]
    pub(crate) probe: Option<String>,
}
