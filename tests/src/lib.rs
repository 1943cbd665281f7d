//! Lode: tests.
