//! `lode tokenize`: text to ids and back.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Reads standard input to its end, verbatim, and prints one id a line. Needs the model's tokenizer only: no worker.
A GGUF brings its own; its ids are those of llama.cpp.

Examples:
  printf 'What is water?' | lode tokenize lode-demo --json
  printf '1 2 3' | lode tokenize lode-demo --decode")]
pub(crate) struct Tokenize {
    pub(crate) name: String,
    /// Turn ids into text
    #[arg(long)]
    pub(crate) decode: bool,
    /// Add no special tokens and take none in the text for one
    #[arg(long)]
    pub(crate) no_special: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
