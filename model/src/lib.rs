//! The vocabulary that every part of Lode shares: names, digests, manifests, tensors, and how a checkpoint becomes layers.
//! Bytes and strings go in, values come out; nothing here opens a file, a socket or a device, and nothing here waits.

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
mod stays_small;
