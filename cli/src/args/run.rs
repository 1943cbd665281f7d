//! Arguments of `lode run`.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "\
The words of PROMPT are joined with spaces. Text on standard input is put in front of them. Without
either, a chat starts on the terminal: `/help` in it lists its commands. Reasoning is printed to
standard error, on a terminal only.

Examples:
  lode run lode-demo
  lode run lode-demo What is 40 plus 41?
  lode run lode-demo \"Summarise this text.\" < article.txt
  echo \"Define water.\" | lode run lode-demo --temperature 0
  lode run lode-demo \"A river:\" --format schema.json")]
pub(crate) struct Run {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Prompt, as one or several words [default: standard input, or a chat on a terminal]
    pub(crate) prompt: Vec<String>,
    /// System message, instead of the model's own
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// Sampling temperature; 0 always picks the most likely token
    #[arg(long, allow_negative_numbers = true, value_parser = number)]
    pub(crate) temperature: Option<f64>,
    /// Random seed; the same seed gives the same text
    #[arg(long, allow_negative_numbers = true, value_parser = integer)]
    pub(crate) seed: Option<i64>,
    /// Maximum number of tokens to generate
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = integer)]
    pub(crate) num_predict: Option<i64>,
    /// Structured output: `json` for any JSON object, or a file with a JSON schema
    #[arg(long, value_name = "json|FILE")]
    pub(crate) format: Option<String>,
    /// Whether and how much a reasoning model reasons before it responds
    #[arg(
        long,
        value_name = "LEVEL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(crate) think: Option<Think>,
    /// Do not print the model's reasoning
    #[arg(long)]
    pub(crate) hide_thinking: bool,
    /// Send the prompt unchanged, without the model's template
    #[arg(long)]
    pub(crate) raw: bool,
    /// How long the model stays loaded after the request, such as 5m
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_alive: Option<String>,
    /// Print token counts and speeds after the text
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// The values of `think` in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Think {
    True,
    False,
    Low,
    Medium,
    High,
}

fn number(text: &str) -> Result<f64, &'static str> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or("expected a number, such as 0.7")
}

fn integer(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|_| "expected an integer, such as 42")
}
