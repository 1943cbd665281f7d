//! `lode run`: asking a model.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Without a PROMPT it is read from standard input; on a terminal a conversation starts.

Examples:
  lode run lode-demo \"What is 40 plus 41?\"
  echo \"Define water.\" | lode run lode-demo --temperature 0
  lode run lode-demo \"A river:\" --format schema.json")]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) prompt: Option<String>,
    /// What the model is told before the conversation
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// 0 picks the likeliest token each time
    #[arg(long)]
    pub(crate) temperature: Option<f32>,
    /// The same seed gives the same answer
    #[arg(long)]
    pub(crate) seed: Option<i64>,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) num_predict: Option<i64>,
    /// Hold the answer to JSON: `json` for any object, or a file with a JSON schema
    #[arg(long, value_name = "json|FILE")]
    pub(crate) format: Option<String>,
    /// Send the prompt as it is, without the model's template
    #[arg(long)]
    pub(crate) raw: bool,
    /// How long the model stays loaded afterwards, such as 5m
    #[arg(long, value_name = "DURATION")]
    pub(crate) keep_alive: Option<String>,
    /// Say counts and speeds afterwards
    #[arg(long, short)]
    pub(crate) verbose: bool,
}
