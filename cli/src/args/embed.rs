//! Arguments of `lode embed`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Prints one embedding per line, as a JSON array. Without TEXT, each line of standard input is embedded.

Examples:
  lode embed minilm \"What is water?\"
  lode embed embeddinggemma --prompt query \"What is water?\"
  lode embed minilm < sentences.txt > vectors.jsonl")]
pub(crate) struct Embed {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Text to embed [default: the lines of standard input]
    pub(crate) text: Option<String>,
    /// Name of the model's prompt that precedes each text, such as query or document
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Return only the first N numbers of each embedding, L2-normalised again
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) dimensions: Option<u32>,
    /// Fail if a text exceeds the model's maximum length, instead of truncating it
    #[arg(long)]
    pub(crate) no_truncate: bool,
    /// How long the model stays loaded after the request, such as 5m
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_alive: Option<String>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
