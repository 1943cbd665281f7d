//! Model architectures, one file each: the configuration, the tensors, and the forward pass. They use the
//! kernels, so they run on any device. The native engine builds a model here and calls it once per step.

mod bert;
mod config;
mod decoder;
mod error;
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
pub use rope::{RopeConfig, RopeKind};

use lode_kernels::{Batch, DeviceError, Kernels, Weight};

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

/// A model's tensors by name, checked when they are read.
pub trait Tensors {
    /// Whether the model has this tensor.
    fn has(&self, name: &str) -> bool;

    /// The matrix with this name; an error unless its shape is `[rows, cols]`.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, LoadError>;

    /// The vector with this name; an error unless it has `len` floats.
    fn vector(&mut self, name: &str, len: usize) -> Result<Weight, LoadError>;
}

/// The dimensions of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// This crate's name for it.
    pub architecture: &'static str,
    pub vocab_size: usize,
    /// Maximum number of positions.
    pub context_length: usize,
    pub embedding_length: usize,
    pub hidden_dim: usize,
    pub layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
}

/// The rows that a pass copies to the host.
#[derive(Debug, Default)]
pub struct Output {
    /// For the rows of `Batch::logits`: `[L, vocab_size]`.
    pub logits: Vec<f32>,
    /// For the rows of `Batch::hidden`: `[H, embedding_length]`.
    pub hidden: Vec<f32>,
}

/// The inputs and outputs of one pass.
pub struct Pass<'a, K: Kernels> {
    pub kernels: &'a mut K,
    pub batch: &'a Batch,
    /// The KV cache for the batch.
    pub cache: &'a mut K::Cache,
    /// The rows that the batch requests are appended here.
    pub output: &'a mut Output,
    /// Checked between layers. Once true it stays true, and the pass may end without its rows.
    pub is_cancelled: &'a dyn Fn() -> bool,
}

/// A model's forward pass on the device of `K`.
pub trait Forward<K: Kernels>: Send {
    fn forward(&mut self, pass: Pass<'_, K>) -> Result<(), DeviceError>;
}

/// A recognised and checked configuration; no tensor has been read yet.
pub struct Plan(Kind);

enum Kind {
    Decoder(plan::Plan),
    Encoder(bert::Plan),
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
            Kind::Encoder(plan) => Ok(Box::new(bert::Encoder::build(plan, tensors, kernels)?)),
        }
    }
}
