//! `lode push`: sending files.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Each file becomes a layer with its name as title, as oras does it; of a folder, every file below it. `lode create` is
the better way in for a checkpoint: it stores tensors once.

Examples:
  lode push ./model.onnx ./tokenizer.json team/encoder:1
  lode push ./folder team/files")]
pub(crate) struct Push {
    /// Files and folders
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// What to call it
    #[arg(required = true)]
    pub(crate) name: String,
    /// The manifest's artifactType
    #[arg(long, value_name = "TYPE", default_value = "application/vnd.unknown.artifact.v1")]
    pub(crate) artifact_type: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
