//! The worker's kernels, as they are: see Cargo.toml.

#[path = "../worker/src/kernels/mod.rs"]
#[allow(dead_code, reason = "what other parts of the worker call")]
pub mod kernels;
