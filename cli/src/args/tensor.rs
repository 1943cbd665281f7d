//! Arguments of the `lode tensor` subcommands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum Tensor {
    /// List a model's tensors
    #[command(alias = "list")]
    Ls(TensorLs),
    /// Export tensors to a .safetensors file
    Export(TensorExport),
}

#[derive(Debug, Args)]
pub(crate) struct TensorLs {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportDtype {
    F32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Only the data of the named tensors is downloaded.

Examples:
  lode tensor export team/mini --to mini.safetensors
  lode tensor export team/mini:int4 model.norm.weight \\
    --to norm.safetensors --dtype f32")]
pub(crate) struct TensorExport {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Tensors to export [default: all]
    #[arg(value_name = "TENSOR")]
    pub(crate) tensors: Vec<String>,
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Decode the values to this type [default: keep the stored type]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) dtype: Option<ExportDtype>,
}
