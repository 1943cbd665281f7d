//! Arguments of `lode ps`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
