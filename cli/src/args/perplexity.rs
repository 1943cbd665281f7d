//! `lode perplexity`: measuring a model.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
The text becomes ids without special tokens, cut into consecutive windows; every position of a window is scored, and
an incomplete window at the end is left out.

Example:
  lode perplexity lode-demo heldout.txt --window 256")]
pub(crate) struct Perplexity {
    pub(crate) name: String,
    /// A text file
    pub(crate) file: PathBuf,
    /// Ids that the model sees at once
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) window: u32,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
