//! Model architectures: one file per family, which translates a configuration to a plan, and the two forward
//! passes that run plans. They use the kernels, so they run on any device. The native engine builds a model
//! here and calls it once per step.

mod bert;
mod config;
mod decoder;
mod encoder;
mod error;
mod families;
mod family;
mod forward;
mod gemma2;
mod gemma3;
pub mod gguf;
mod llama;
mod mistral;
mod mixtral;
mod nomic_bert;
mod phi3;
mod plan;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope;

pub use config::{Config, ConfigError, Container};
pub use error::LoadError;
pub use families::Plan;
pub use forward::{Forward, Output, Pass, Shape, Tensors};
pub use rope::{RopeConfig, RopeKind};
