//! `lode completions`: completion scripts.

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}
