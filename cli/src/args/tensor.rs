//! `lode tensor`: tensors of a model.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum Tensor {
    /// List a model's tensors
    Ls(TensorLs),
    /// Write tensors to a .safetensors file
    Export(TensorExport),
}

#[derive(Debug, Args)]
pub(crate) struct TensorLs {
    pub(crate) name: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportDtype {
    F32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Only the bytes of the tensors that are named are fetched.

Examples:
  lode tensor export team/mini --to mini.safetensors
  lode tensor export team/mini:int4 model.norm.weight model.embed_tokens.weight --to two.safetensors --dtype f32")]
pub(crate) struct TensorExport {
    pub(crate) name: String,
    /// Which; all where none is named
    #[arg(value_name = "TENSOR")]
    pub(crate) tensors: Vec<String>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Decode to this type; without it tensors are written as they are stored
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) dtype: Option<ExportDtype>,
}
