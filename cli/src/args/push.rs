//! Arguments of `lode push`.

use std::path::PathBuf;

use clap::Args;

use super::shared::annotation;

#[derive(Debug, Args)]
#[command(after_help = "\
Each file becomes a layer with the file name as its title, as with oras. A folder stands for all files
below it. To import a checkpoint as a model, use `lode create`: it stores equal tensors only once.

Examples:
  lode push ./model.onnx ./tokenizer.json team/encoder:1
  lode push ./folder team/files

`lode push NAME PATH...` works too if no file has that name.")]
pub(crate) struct Push {
    /// Files and folders to upload
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Name of the artifact: [host/]repository[:tag]
    #[arg(required = true)]
    pub(crate) name: String,
    /// artifactType of the manifest
    #[arg(long, value_name = "TYPE", default_value = "application/vnd.unknown.artifact.v1")]
    pub(crate) artifact_type: String,
    /// Annotation of the manifest; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = annotation)]
    pub(crate) annotation: Vec<(String, String)>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
