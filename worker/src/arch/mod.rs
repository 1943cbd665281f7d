//! One file a model architecture: what its configuration must say, which tensors it needs, and its forward pass.
//! Written over the kernels, so that it runs on any device; the native engine builds a model here and calls it a step at a time.

mod bert;
mod config;
mod decoder;
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
pub use rope::{RopeConfig, RopeKind};

use crate::engine::LoadError;
use lode_kernels::{Batch, DeviceError, Kernels, Weight};

/// What can be run, by the names that `architectures` in config.json has.
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

/// A model's tensors by name, checked as they are taken.
pub trait Tensors {
    /// Whether there is such a tensor.
    fn has(&self, name: &str) -> bool;

    /// The matrix `[rows, cols]` of this name; anything else is refused.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, LoadError>;

    /// The vector of `len` floats of this name; anything else is refused.
    fn vector(&mut self, name: &str, len: usize) -> Result<Weight, LoadError>;
}

/// The numbers that decide the size of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// As this crate names it.
    pub architecture: &'static str,
    pub vocab_size: usize,
    /// Positions the model was made for.
    pub context_length: usize,
    pub embedding_length: usize,
    pub hidden_dim: usize,
    pub layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

/// The rows that a pass leaves on the host.
#[derive(Debug, Default)]
pub struct Output {
    /// For the rows of `Batch::logits`: `[L, vocab_size]`.
    pub logits: Vec<f32>,
    /// For the rows of `Batch::hidden`: `[H, embedding_length]`.
    pub hidden: Vec<f32>,
}

/// What one pass works on.
pub struct Pass<'a, K: Kernels> {
    pub kernels: &'a mut K,
    pub batch: &'a Batch,
    /// Where the keys and values of the batch go.
    pub cache: &'a mut K::Cache,
    /// What the rows that the batch asks for are appended to.
    pub output: &'a mut Output,
    /// Asked between layers; once it is true, it stays true, and the pass may end without its rows.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

/// A model's forward pass on the device of `K`.
pub trait Forward<K: Kernels>: Send {
    fn forward(&mut self, pass: Pass<'_, K>) -> Result<(), DeviceError>;
}

/// A configuration that was recognised and checked, before any tensor is touched.
pub struct Plan(Kind);

enum Kind {
    Decoder(plan::Plan),
    Encoder(bert::Plan),
}

impl Plan {
    /// Recognises the architecture, by its class or where there is none by `model_type`, and range-checks its numbers.
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
            "Gemma3ForConditionalGeneration" | "gemma3" => gemma3::beside_vision,
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

    /// Whether every token sees all of its sequence: such a model gives hidden states only, of a whole sequence at once.
    pub fn is_encoder(&self) -> bool {
        matches!(self.0, Kind::Encoder(_))
    }

    /// Takes the tensors and hands them to the device, for sequences of up to `context_length` tokens.
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
            Kind::Encoder(plan) => Ok(Box::new(bert::Encoder::build(plan, tensors, kernels)?)),
        }
    }
}
