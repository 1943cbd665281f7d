//! Arguments of `lode status`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
