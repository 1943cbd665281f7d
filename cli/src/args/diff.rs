//! Arguments of `lode diff`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Tensors are matched by name; tensors of a GGUF also by the names in the checkpoint that it was made
from. They are compared by value, whatever type they are stored as. `same values` means: stored as
another type or in another order, without loss. ERROR is the size of the difference relative to A's
values: 0.01 is 1 %. The exit code is 0 when the comparison completes, whatever the result.

Examples:
  lode diff team/base team/tuned
  lode diff team/mini team/mini:int4 --json |
    jq -r 'select(.tensor).tensor | [.name, .relative_error] | @tsv'")]
pub(crate) struct Diff {
    /// First model
    #[arg(value_name = "A")]
    pub(crate) here: String,
    /// Model to compare it with, on the same server
    #[arg(value_name = "B")]
    pub(crate) there: String,
    /// Also list identical tensors
    #[arg(long)]
    pub(crate) all: bool,
    /// Show types, shapes and B's names, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print JSON lines: one object per tensor, then the totals
    #[arg(long)]
    pub(crate) json: bool,
}
