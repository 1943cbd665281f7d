//! `lode diff`: two models, tensor by tensor.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Tensors are matched by name, those of a GGUF also by the names of the checkpoint that it was made
from, and compared by value whatever they are stored as: `same values` are stored as another type
or in another order, and nothing is lost. The error is the size of the difference against that of
A's values: 0.01 is 1 %.
Exit code 0: the comparison is done, whatever it found.

Examples:
  lode diff team/base team/tuned
  lode diff team/mini team/mini:int4 --json | jq -r 'select(.tensor).tensor | [.name, .relative_error] | @tsv'")]
pub(crate) struct Diff {
    /// This model
    #[arg(value_name = "A")]
    pub(crate) here: String,
    /// The one it is compared with, on the same server
    #[arg(value_name = "B")]
    pub(crate) there: String,
    /// List tensors that are the same, too
    #[arg(long)]
    pub(crate) all: bool,
    /// Print lines of JSON: an object a tensor, then the total
    #[arg(long)]
    pub(crate) json: bool,
}
