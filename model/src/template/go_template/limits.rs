//! Limits on the cost of a template: it is untrusted, and so is its data.

pub const MAX_SOURCE_BYTES: usize = 1 << 20;
pub(super) const MAX_OUTPUT_BYTES: usize = 16 << 20;
pub(super) const MAX_STEPS: usize = 2_000_000;
pub(super) const MAX_DEPTH: usize = 100;
/// The most variables in scope. A variable is found by a linear search.
pub(super) const MAX_VARIABLES: usize = 1000;
