//! The numbers of a GGUF that its conversion depends on.

use crate::convert::family::Family;

/// The numbers that the shapes of the tensors follow from.
pub(super) struct Hyper {
    pub(super) family: &'static Family,
    pub(super) n_layers: u64,
    pub(super) width: u64,
    pub(super) n_heads: u64,
    pub(super) n_kv_heads: u64,
    pub(super) head_dim: u64,
    pub(super) n_ff: u64,
    pub(super) n_experts: u64,
    pub(super) n_expert_ff: u64,
    pub(super) vocab_size: u64,
    pub(super) context_length: u64,
    /// Whether the embedding is also the output matrix.
    pub(super) is_tied: bool,
}
