//! `lode create`: importing a model.

use std::path::PathBuf;

use clap::Args;
use lode_model::import::Quantize;

#[derive(Debug, Args)]
#[command(after_help = "\
Every tensor of a checkpoint becomes a blob of its own, so models that share tensors share bytes:
only what the registry lacks is sent. Interrupted, repeat the command: what arrived stays there.

Examples:
  lode create team/mini ./checkpoint-folder
  lode create team/mini:int4 ./checkpoint-folder --quantize int4
  lode create team/mini:q4 ./checkpoint-folder --quantize q4_K_M
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
    /// Quantise float weights on the way
    ///
    /// To tensor blobs: int4, int8, nvfp4, mxfp4, mxfp8. To a GGUF, from a checkpoint or a GGUF of floats: F32, F16, BF16,
    /// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K. Upper and lower case
    /// are the same; a GGUF is made on all cores in a file below TMPDIR before it is sent
    #[arg(long, value_name = "TYPE")]
    pub(crate) quantize: Option<Quantize>,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
