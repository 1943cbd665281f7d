//! `lode create`: importing a model.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantize {
    Int4,
    Int8,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every tensor becomes a blob of its own, so models that share tensors share their bytes: only what the registry lacks is
sent. Interrupted, repeat the command: what arrived is not sent again.

Examples:
  lode create team/mini ./checkpoint-folder
  lode create team/mini:int4 ./checkpoint-folder --quantize int4
  lode create hub.local/team/adapter ./adapter.safetensors
  lode create team/brief -f Modelfile")]
pub(crate) struct Create {
    /// What to call it
    pub(crate) name: String,
    /// A checkpoint folder, a file of weights, or a Modelfile
    pub(crate) path: Option<PathBuf>,
    /// The Modelfile that says what the model is made from and what it is told [default: ./Modelfile without a PATH]
    #[arg(short, long, value_name = "MODELFILE")]
    pub(crate) file: Option<PathBuf>,
    /// Quantise the weights on the way
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) quantize: Option<Quantize>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
