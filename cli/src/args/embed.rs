//! `lode embed`: vectors of texts.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Prints one vector a line, as a JSON array. Without a TEXT, each line of standard input is a text.

Examples:
  lode embed minilm \"What is water?\"
  lode embed minilm < sentences.txt > vectors.jsonl")]
pub(crate) struct Embed {
    pub(crate) name: String,
    pub(crate) text: Option<String>,
    /// Keep the first N numbers of each vector
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) dimensions: Option<u32>,
    /// Fail on a text that is longer than the model can take, instead of cutting it
    #[arg(long)]
    pub(crate) no_truncate: bool,
    /// How long the model stays loaded afterwards, such as 5m
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_alive: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
