//! Arguments of `lode tokenize`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Prints one id per line. Standard input is read to its end and not changed. The command downloads
only the model's tokenizer and needs no worker. The ids of a GGUF are those of llama.cpp.

Examples:
  lode tokenize lode-demo 'What is water?'
  printf 'What is water?' | lode tokenize lode-demo --json
  printf '1 2 3' | lode tokenize lode-demo --decode")]
pub(crate) struct Tokenize {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Text, or ids with --decode [default: standard input]
    pub(crate) text: Option<String>,
    /// Convert ids to text
    #[arg(long)]
    pub(crate) decode: bool,
    /// Add no special tokens, and treat those in the text as plain text; with --decode, omit them
    #[arg(long)]
    pub(crate) no_special: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
