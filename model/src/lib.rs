//! The vocabulary that every part of Lode shares: names, digests, manifests, tensors, and the import of
//! checkpoints into layers. Functions take bytes and strings and return values: nothing here opens a file, a
//! socket or a device, and nothing blocks.
//!
//! A folder uses only folders of earlier lines:
//!
//! ```text
//! oci, quant, template            names and manifests; number formats; prompt templates
//! formats                         safetensors, GGUF and ONNX files, and their tensors
//! recognise, source, modelfile    stored models; the files of an import; Modelfiles
//! convert                         a checkpoint as a GGUF
//! import, diff                    files as layers; two models compared
//! xet                             uploads of Hugging Face's clients
//! ```

pub mod convert;
pub mod diff;
pub mod import;
pub mod json_outline;
pub mod modelfile;
pub mod quant;
pub mod recognise;
pub mod xet;

mod error_chain;
mod formats;
mod json_types;
mod oci;
mod source;
mod template;

pub use error_chain::error_chain;
pub use formats::{gguf, onnx, read_at, safetensors, tensor};
pub use json_types::with_json_types;
pub use oci::{config, digest, files_view, manifest, media_type, reference};
pub use recognise::{index, lineage, runnable};
pub use template::{go_template, prompt_template};

#[cfg(test)]
mod invariants;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "shared with the end-to-end tests, which use all of it")]
#[path = "../../tests/src/onnx.rs"]
mod onnx_writer;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "shared with the end-to-end tests, which use all of it")]
#[path = "../../tests/src/report.rs"]
mod report;
