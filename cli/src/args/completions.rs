//! Arguments of `lode completions`.

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to print the script for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}
