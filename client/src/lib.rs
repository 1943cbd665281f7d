//! Lode: client.
