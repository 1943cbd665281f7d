//! The text helper of a runner: a process that evaluates all data of a model's files or a request
//! (tokenizers, chat templates, regular expressions, JSON schemas), within limits and without mapping
//! weights.
//!
//! The helper reads the model's text data once. For each call, and for each response with a format, it forks
//! an evaluator, which shares that data and is ready at once. An evaluator that exceeds a limit is killed,
//! and only its call fails; the next call gets another one. Neither process maps weights, opens a socket or
//! starts a thread.

mod client;
mod fork;
mod frame;
mod process;
mod protocol;
mod session;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub(crate) use client::{Helper, TextData};
pub use process::main;
pub(super) use protocol::{EngineFacts, PreparedRequest, ReaderSettings};
pub(crate) use session::{Poll, Session};

use super::protocol::{ModelSpec, RunnerError};
use super::text_side::MAX_TOKENIZER_BYTES;

/// Reading tokenizer data may take this many times the timeout of a call: a vocabulary has hundreds of
/// thousands of tokens.
const READ_FACTOR: u32 = 5;
/// Bytes of memory beyond the limit that reading a tokenizer.json may take for each byte of the file. One of
/// 28 MB with 262,144 tokens and 508,048 merges took 470 MiB, of which 190 remained in use.
const READ_BYTES_FACTOR: u64 = 12;

/// Limits of each evaluation of data from a model's files or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextLimits {
    /// `LODE_TEXT_TIMEOUT`.
    pub timeout: Duration,
    /// `LODE_TEXT_MEMORY`: bytes of address space that a process may map beyond what it has at its start.
    pub memory: u64,
}

impl Default for TextLimits {
    fn default() -> TextLimits {
        TextLimits { timeout: Duration::from_secs(2), memory: 256 << 20 }
    }
}

impl TextLimits {
    fn read_timeout(&self) -> Duration {
        self.timeout.saturating_mul(READ_FACTOR)
    }

    fn read_memory(&self, model: &ModelSpec) -> u64 {
        let file = model.files.get("tokenizer.json");
        let file_bytes = file.map_or(0, |file| match file.extent {
            Some(extent) => extent.size,
            None => std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len()),
        });
        self.memory.saturating_add(file_bytes.min(MAX_TOKENIZER_BYTES).saturating_mul(READ_BYTES_FACTOR))
    }

    /// The error of an evaluation that exceeded the timeout.
    fn timeout_error(&self, what: &str) -> RunnerError {
        let timeout = humantime::format_duration(self.timeout);
        RunnerError::invalid(format!("{what} took longer than the limit LODE_TEXT_TIMEOUT ({timeout})"))
    }

    /// The error of reading data that exceeded the timeout.
    fn read_timeout_error(&self, what: &str) -> RunnerError {
        let (allowed, timeout) =
            (humantime::format_duration(self.read_timeout()), humantime::format_duration(self.timeout));
        RunnerError::unsupported(format!(
            "{what} took longer than {allowed}, {READ_FACTOR} times the limit LODE_TEXT_TIMEOUT ({timeout})"
        ))
    }

    /// The error of an evaluation whose process ended, as it does when an allocation exceeds the limit.
    fn memory_error(&self, what: &str) -> RunnerError {
        RunnerError::invalid(format!(
            "{what} needed more memory than the limit LODE_TEXT_MEMORY ({} MiB)",
            self.memory >> 20
        ))
    }
}
