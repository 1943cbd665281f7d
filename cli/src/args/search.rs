//! Arguments of `lode search`.

use clap::Args;
use clap::ValueEnum;

#[derive(Debug, Args)]
#[command(after_help = "\
Words match names, tags and model cards, each at its beginning; a word with a slash matches names.
Each line is a repository, with the tag that fits best. Counts take a unit: 7B, 500M, 32K.

Examples:
  lode search llama
  lode search --task text-generation --fits 24GiB --sort pulls
  lode search --format gguf --min 7B --max 14B instruct
  lode search --base team/mini --json | jq -r '.repositories[].repository'")]
pub(crate) struct Search {
    /// Words to find
    pub(crate) words: Vec<String>,
    /// Find other repositories, too: images, and artifacts that are not models
    #[arg(long)]
    pub(crate) all: bool,
    /// Only models for this task, such as text-generation
    #[arg(long)]
    pub(crate) task: Option<String>,
    /// Only models of this format, such as gguf
    #[arg(long)]
    pub(crate) format: Option<String>,
    /// Only models of this quantisation, such as Q4_K_M
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantization: Option<String>,
    /// Only models of this architecture, such as llama
    #[arg(long, value_name = "NAME")]
    pub(crate) architecture: Option<String>,
    /// Only models with this licence, such as MIT
    #[arg(long, value_name = "NAME")]
    pub(crate) license: Option<String>,
    /// The least number of parameters
    #[arg(long, value_name = "COUNT")]
    pub(crate) min: Option<String>,
    /// The most parameters
    #[arg(long, value_name = "COUNT")]
    pub(crate) max: Option<String>,
    /// The memory into which a model has to fit, such as 24GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) fits: Option<String>,
    /// The least length of the context, in tokens
    #[arg(long, value_name = "COUNT")]
    pub(crate) context: Option<String>,
    /// Only models that were made from this one
    #[arg(long, value_name = "MODEL")]
    pub(crate) base: Option<String>,
    /// The order. Without words, relevance is the time of the last change
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: SearchSort,
    /// How many repositories to show
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 25)]
    pub(crate) limit: usize,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum SearchSort {
    #[default]
    Relevance,
    Updated,
    Name,
    Parameters,
    Size,
    Pulls,
}
