//! Arguments of `lode rerank`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Prints the score and the text of each document, separated by a tab, the most relevant one first. Without
DOCUMENT, each line of standard input is a document.

Examples:
  lode rerank reranker \"What is water?\" \"A liquid.\" \"A color.\"
  lode rerank reranker \"What is water?\" --top 3 < sentences.txt")]
pub(crate) struct Rerank {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Text to compare the documents with
    pub(crate) query: String,
    /// Documents to rank [default: the lines of standard input]
    #[arg(value_name = "DOCUMENT")]
    pub(crate) documents: Vec<String>,
    /// Print only the N most relevant documents
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top: Option<u32>,
    /// Fail if a document exceeds the model's maximum length, instead of truncating it
    #[arg(long)]
    pub(crate) no_truncate: bool,
    /// How long the model stays loaded after the request, such as 5m
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_alive: Option<String>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
