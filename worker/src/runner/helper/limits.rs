//! The limits as times and sizes of each evaluation, and the errors of evaluations that exceed them.

use std::time::Duration;

use super::super::limits::TextLimits;
use super::super::protocol::{ModelSpec, RunnerError};
use super::super::text_side::MAX_TOKENIZER_BYTES;

/// Reading tokenizer data may take this many times the timeout of a call: a vocabulary has hundreds of
/// thousands of tokens.
const READ_FACTOR: u32 = 5;
/// Bytes of memory beyond the limit that reading a tokenizer.json may take for each byte of the file. One of
/// 28 MB with 262,144 tokens and 508,048 merges took 470 MiB, of which 190 remained in use.
const READ_BYTES_FACTOR: u64 = 12;

impl TextLimits {
    pub(super) fn read_timeout(&self) -> Duration {
        self.timeout.saturating_mul(READ_FACTOR)
    }

    pub(super) fn read_memory(&self, model: &ModelSpec) -> u64 {
        let file = model.files.get("tokenizer.json");
        let file_bytes = file.map_or(0, |file| match file.extent {
            Some(extent) => extent.size,
            None => std::fs::metadata(&file.path).map_or(0, |metadata| metadata.len()),
        });
        self.memory.saturating_add(file_bytes.min(MAX_TOKENIZER_BYTES).saturating_mul(READ_BYTES_FACTOR))
    }

    /// The error of an evaluation that exceeded the timeout.
    pub(super) fn timeout_error(&self, what: &str) -> RunnerError {
        let timeout = humantime::format_duration(self.timeout);
        RunnerError::invalid(format!("{what} took longer than the limit LODE_TEXT_TIMEOUT ({timeout})"))
    }

    /// The error of reading data that exceeded the timeout.
    pub(super) fn read_timeout_error(&self, what: &str) -> RunnerError {
        let (allowed, timeout) =
            (humantime::format_duration(self.read_timeout()), humantime::format_duration(self.timeout));
        RunnerError::unsupported(format!(
            "{what} took longer than {allowed}, {READ_FACTOR} times the limit LODE_TEXT_TIMEOUT ({timeout})"
        ))
    }

    /// The error of an evaluation whose process ended, as it does when an allocation exceeds the limit.
    pub(super) fn memory_error(&self, what: &str) -> RunnerError {
        RunnerError::invalid(format!(
            "{what} needed more memory than the limit LODE_TEXT_MEMORY ({} MiB)",
            self.memory >> 20
        ))
    }
}
