//! Arguments of `lode create`.

use std::path::PathBuf;

use clap::Args;
use lode_model::import::Conversion;

use super::shared::annotation;

#[derive(Debug, Args)]
#[command(after_help = "\
Each tensor of a checkpoint is stored as a separate blob, so models with equal tensors share storage.
Only blobs that the registry lacks are uploaded. If the command is interrupted, repeat it: the
uploaded data is kept.

Examples:
  lode create team/mini ./checkpoint-folder
  lode create team/mini:int4 ./checkpoint-folder --quantize int4
  lode create team/mini:q4 ./checkpoint-folder --quantize q4_K_M
  lode create team/mini:q4 --from team/mini --quantize q4_K_M
  lode create team/llama hf://acme/llama
  lode create hub.local/team/adapter ./adapter.safetensors
  lode create team/brief -f Modelfile

`lode create PATH NAME` works too if PATH exists and NAME is no file.")]
pub(crate) struct Create {
    /// Name of the new model: [host/]repository[:tag]
    pub(crate) name: String,
    /// Checkpoint folder, weights file (.safetensors, .gguf, .onnx), Modelfile or hf://NAMESPACE/MODEL[@REVISION]
    pub(crate) path: Option<PathBuf>,
    /// Create the model from a stored one, on its server
    ///
    /// With --quantize, the server reads the stored files and quantises their weights in a job, which this
    /// command follows; Ctrl-C cancels it. The original need not be downloaded
    #[arg(long, value_name = "NAME", conflicts_with_all = ["path", "file"])]
    pub(crate) from: Option<String>,
    /// Modelfile with base model, template, system message and parameters [default: ./Modelfile without PATH]
    #[arg(short, long, value_name = "MODELFILE")]
    pub(crate) file: Option<PathBuf>,
    /// Quantise float weights during the import
    ///
    /// Types that are stored as tensor blobs: int4, int8, nvfp4, mxfp4, mxfp8. Types that produce a GGUF,
    /// from a checkpoint or from a float GGUF: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K_S,
    /// Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K. Names are not case-sensitive. From local files, a
    /// GGUF is built on all cores in a temporary file in TMPDIR and then uploaded
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<Conversion>,
    /// Annotation of the manifest; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = annotation)]
    pub(crate) annotation: Vec<(String, String)>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
