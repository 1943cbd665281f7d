//! `lode list`: listing models.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode list
  lode list team/mini
  lode list --json | jq -r '.models[].repository'")]
pub(crate) struct List {
    /// Only this repository and what lies below it
    pub(crate) repository: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
