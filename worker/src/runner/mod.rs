//! One process a loaded model: its protocol, the process seen from the worker, and the server inside it.
//! The worker's scheduler starts runners; nobody else talks to them.

mod batch;
pub mod client;
mod embed;
mod generate;
mod helper;
mod model;
pub mod process;
mod prompt;
pub mod protocol;
mod server;
mod slot;
mod text_side;

#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
pub(crate) mod testing;

pub use client::{Client, EventStream};
pub use helper::{TextLimits, main as text_main};
pub use server::{StartError, main};

#[cfg(test)]
pub(crate) use {
    model::Model,
    server::{Loader, serve as serve_runner},
};
