//! The operator's limits on evaluating text data.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
