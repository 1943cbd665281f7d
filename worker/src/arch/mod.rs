//! Model architectures, one file each: the configuration, the tensors, and the forward pass. They use the
//! kernels, so they run on any device. The native engine builds a model here and calls it once per step.

mod bert;
mod config;
mod decoder;
mod encoder;
mod error;
mod forward;
mod gemma2;
mod gemma3;
pub mod gguf;
mod llama;
mod mistral;
mod mixtral;
mod phi3;
mod plan;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope;

pub use config::{Config, ConfigError, Container};
pub use error::LoadError;
pub use forward::{Forward, Output, Pass, Shape, Tensors};
pub use rope::{RopeConfig, RopeKind};

use lode_kernels::Kernels;

/// The supported architectures, with the names from `architectures` in config.json.
pub const SUPPORTED: &[&str] = &[
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma3ForConditionalGeneration",
    "Phi3ForCausalLM",
    "BertModel",
    "RobertaModel",
    "XLMRobertaModel",
];

/// A recognised and checked configuration; no tensor has been read yet.
pub struct Plan(Kind);

enum Kind {
    Decoder(plan::Plan),
    Encoder(encoder::Plan),
}

impl Plan {
    /// Recognises the architecture by its class, or without one by `model_type`, and range-checks its
    /// numbers.
    pub fn new(config: &Config) -> Result<Self, LoadError> {
        let architecture = config.architecture();
        let plan = match architecture.as_str() {
            "LlamaForCausalLM" | "llama" => llama::plan,
            "MistralForCausalLM" | "mistral" => mistral::plan,
            "MixtralForCausalLM" | "mixtral" => mixtral::plan,
            "Qwen2ForCausalLM" | "qwen2" => qwen2::plan,
            "Qwen3ForCausalLM" | "qwen3" => qwen3::plan,
            "Qwen3MoeForCausalLM" | "qwen3_moe" => qwen3_moe::plan,
            "Gemma2ForCausalLM" | "gemma2" => gemma2::plan,
            "Gemma3ForCausalLM" | "gemma3_text" => gemma3::plan,
            "Gemma3ForConditionalGeneration" | "gemma3" => gemma3::plan_multimodal,
            "Phi3ForCausalLM" | "phi3" => phi3::plan,
            "BertModel" | "bert" => return Ok(Self(Kind::Encoder(bert::bert(config)?))),
            "RobertaModel" | "roberta" | "XLMRobertaModel" | "xlm-roberta" => {
                return Ok(Self(Kind::Encoder(bert::roberta(config)?)));
            }
            _ => return Err(LoadError::UnsupportedArchitecture { architecture, supported: SUPPORTED }),
        };
        Ok(Self(Kind::Decoder(plan(config)?.check()?)))
    }

    pub fn shape(&self) -> Shape {
        match &self.0 {
            Kind::Decoder(plan) => plan.shape,
            Kind::Encoder(plan) => plan.shape,
        }
    }

    /// Whether every token attends to its whole sequence. Such a model returns only hidden states, for a
    /// whole sequence at a time.
    pub fn is_encoder(&self) -> bool {
        matches!(self.0, Kind::Encoder(_))
    }

    /// Reads the tensors and uploads them to the device, for sequences of up to `context_length` tokens.
    pub fn build<K: Kernels + 'static>(
        &self,
        tensors: &mut dyn Tensors,
        kernels: &mut K,
        context_length: usize,
    ) -> Result<Box<dyn Forward<K>>, LoadError> {
        match &self.0 {
            Kind::Decoder(plan) => {
                Ok(Box::new(decoder::Decoder::build(plan, tensors, kernels, context_length)?))
            }
            Kind::Encoder(plan) => Ok(Box::new(encoder::Encoder::build(plan, tensors, kernels)?)),
        }
    }
}
