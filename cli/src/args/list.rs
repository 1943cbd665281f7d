//! Arguments of `lode list`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode list
  lode list team/mini
  lode list --json | jq -r '.models[].repository'")]
pub(crate) struct List {
    /// Only this repository and the repositories below it
    pub(crate) repository: Option<String>,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
