//! Arguments of `lode perplexity`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
The text is tokenized without special tokens and split into consecutive windows. Every position of a
window is scored. An incomplete last window is ignored, unless it is the only one.

Example:
  lode perplexity lode-demo heldout.txt --window 256")]
pub(crate) struct Perplexity {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// UTF-8 text file
    pub(crate) file: PathBuf,
    /// Window size in tokens: the context of each prediction
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) window: u32,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
