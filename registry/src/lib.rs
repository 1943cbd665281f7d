//! Lode: registry.
