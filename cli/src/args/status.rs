//! Arguments of `lode status`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
