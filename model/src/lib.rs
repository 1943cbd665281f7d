//! The vocabulary that every part of Lode shares: names, digests, manifests, tensors, and the import of
//! checkpoints into layers. Functions take bytes and strings and return values: nothing here opens a file, a
//! socket or a device, and nothing blocks.

pub mod config;
pub mod convert;
pub mod diff;
pub mod digest;
pub mod files_view;
pub mod gguf;
pub mod go_template;
pub mod import;
pub mod index;
pub mod json_outline;
pub mod lineage;
pub mod manifest;
pub mod media_type;
pub mod modelfile;
pub mod onnx;
pub mod prompt_template;
pub mod quant;
pub mod read_at;
pub mod recognise;
pub mod reference;
pub mod safetensors;
pub mod tensor;

#[cfg(test)]
mod invariants;
