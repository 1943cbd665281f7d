//! Hugging Face's API, for its clients: signing in, and reading models.

pub(crate) mod entries;
pub(crate) mod error;
pub(crate) mod list;
pub(crate) mod models;
pub(crate) mod oauth;
pub(crate) mod refs;
pub(crate) mod resolve;
pub(crate) mod tree;
pub(crate) mod whoami;
