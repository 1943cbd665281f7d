//! Runners: one process per loaded model. Contains the protocol, the worker's handle on the process, and the
//! server in the process. The worker's scheduler starts runners; only the worker connects to them.

mod batch;
pub mod client;
mod commands;
mod embed;
mod embedding;
mod generate;
mod helper;
mod jobs;
mod limits;
mod model;
pub mod process;
mod projections;
mod prompt;
pub mod protocol;
mod relevance;
mod required_call;
mod rerank;
mod server;
mod slot;
mod small_files;
mod text_side;

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
pub(crate) mod testing;

pub use client::{Client, EventStream};
pub use helper::main as text_main;
pub use limits::TextLimits;
pub use server::{StartError, main};

#[cfg(test)]
pub(crate) use {
    model::Model,
    server::{Loader, serve as serve_runner},
};
