//! The text helper of a runner: a process that evaluates all data of a model's files or a request
//! (tokenizers, chat templates, regular expressions, JSON schemas), within limits and without mapping
//! weights.
//!
//! The helper reads the model's text data once. For each call, and for each response with a format, it forks
//! an evaluator, which shares that data and is ready at once. An evaluator that exceeds a limit is killed,
//! and only its call fails; the next call gets another one. Neither process maps weights, opens a socket or
//! starts a thread.

mod client;
mod evaluator;
mod fork;
mod frame;
mod limits;
mod process;
mod protocol;
mod session;
#[cfg(test)]
mod tests;

pub(crate) use client::{Helper, TextData};
pub use process::main;
pub(super) use protocol::{EngineFacts, PreparedRequest, ReaderSettings};
pub(crate) use session::{Poll, Session};
