//! The inference node: pulls models from a registry, keeps them in a cache, runs each in a separate process.
//! `lode serve` and `lode worker` start it with [`start`]; its runner processes run [`runner::main`].

pub mod arch;
pub mod cache;
mod child_env;
pub mod config;
pub mod device;
pub mod engine;
pub mod error;
mod files;
pub mod http;
mod join;
pub mod metrics;
mod node;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "shared with the end-to-end tests, which use all of it")]
#[path = "../../tests/src/onnx.rs"]
mod onnx_writer;
mod python;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "shared with the end-to-end tests, which use all of it")]
#[path = "../../tests/src/report.rs"]
mod report;
mod reserved;
pub mod runner;
pub mod scheduler;
#[cfg(test)]
mod testing;
pub mod text;

pub use config::Config;
pub use error::Error;
pub use node::{Worker, start, start_with};
