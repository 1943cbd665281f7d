//! Arguments of `lode convert`.

use clap::{Args, ValueEnum};
use lode_model::import::Format;

use super::shared::annotation;

#[derive(Debug, Args)]
#[command(after_help = "\
The server reads the files of a stored model and makes the new model in a job, which this command
follows; Ctrl-C cancels it. Template, system message, parameters and licence are kept, and the new model
names the source as its base. Tensors with equal bytes are stored once.

A checkpoint has config.json, tokenizer.json and one safetensors file, or several of 5 GB. It can be made of
the GGUF architectures llama (also Mistral and Mixtral), qwen2, qwen3, qwen3moe, gemma2, gemma3 and phi3.
Quantised tensors are decoded, which does not restore what quantisation lost.

Examples:
  lode convert team/mini:q4 team/mini:floats --to checkpoint
  lode convert team/mini team/mini:gguf --to gguf
  lode convert team/mini team/mini:q8 --to gguf --type q8_0
  lode convert ./mini-Q4_K_M.gguf team/mini --to checkpoint --type f16")]
pub(crate) struct Convert {
    /// Stored model, or a file here, or a folder here that starts with `.` or `/`
    pub(crate) source: String,
    /// Name of the new model: [host/]repository[:tag]
    pub(crate) destination: String,
    /// Format of the new model
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: ConvertFormat,
    /// Type of the weights [default: floats keep their type, quantised tensors become BF16]
    ///
    /// For a checkpoint: F32, F16, BF16. For a GGUF, every GGUF type of `lode create --quantize`; without a type
    /// it has the float type of most weights. Names are not case-sensitive
    #[arg(long, value_name = "TYPE")]
    pub(crate) r#type: Option<String>,
    /// Annotation of the manifest; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = annotation)]
    pub(crate) annotation: Vec<(String, String)>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConvertFormat {
    /// One GGUF file, from a checkpoint or a float GGUF
    Gguf,
    /// config.json, tokenizer.json and safetensors files, from a GGUF
    Checkpoint,
}

impl From<ConvertFormat> for Format {
    fn from(format: ConvertFormat) -> Format {
        match format {
            ConvertFormat::Gguf => Format::Gguf,
            ConvertFormat::Checkpoint => Format::Checkpoint,
        }
    }
}
