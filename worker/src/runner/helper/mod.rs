//! The helper process of a runner: everything that a model's files or a request make us evaluate (tokenizers, chat templates, regular
//! expressions, JSON schemas) is evaluated there, within limits, in a process that maps no weights.
//!
//! The helper reads the model's text data once. For each call, and for each answer with a format, it forks an evaluator, which shares
//! what was read and is ready at once. An evaluator that exceeds a limit is killed, and only its call fails; another is forked for the
//! next one. Neither process maps weights, opens a socket or starts a thread.

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
pub(super) use protocol::{EngineFacts, Prepared, Reading};
pub(crate) use session::{Poll, Session};

use super::protocol::{ModelSpec, RunnerError};
use super::text_side::MAX_TOKENIZER_BYTES;

/// How much longer than a call the reading of tokenizer data may take: a vocabulary has hundreds of thousands of tokens.
const READ_FACTOR: u32 = 5;
/// Bytes of memory that reading a tokenizer.json may take beyond the limit, for each byte of the file: one of 28 MB with 262,144 tokens
/// and 508,048 merges took 470 MiB, of which 190 stayed.
const READ_BYTES_FACTOR: u64 = 12;

/// What a model's files or a request may cost, each time that they are evaluated.
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

    /// The error of what took too long.
    fn too_slow(&self, what: &str) -> RunnerError {
        let timeout = humantime::format_duration(self.timeout);
        RunnerError::invalid(format!(
            "{what} takes longer than the limit LODE_TEXT_TIMEOUT ({timeout}) allows"
        ))
    }

    /// The error of reading what took too long.
    fn too_slow_to_read(&self, what: &str) -> RunnerError {
        let (allowed, timeout) =
            (humantime::format_duration(self.read_timeout()), humantime::format_duration(self.timeout));
        RunnerError::unsupported(format!(
            "{what} takes longer than {allowed}, {READ_FACTOR} times the limit LODE_TEXT_TIMEOUT ({timeout})"
        ))
    }

    /// The error of what ended its process: allocations beyond the limit do.
    fn too_large(&self, what: &str) -> RunnerError {
        RunnerError::invalid(format!(
            "{what} needs more memory than the limit LODE_TEXT_MEMORY ({} MiB) allows",
            self.memory >> 20
        ))
    }
}
