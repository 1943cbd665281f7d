//! Hugging Face's API, for its clients: signing in, and reading and publishing models.

pub(crate) mod commit;
mod commit_body;
pub(crate) mod entries;
pub(crate) mod error;
mod gitignore;
pub(crate) mod lfs;
pub(crate) mod list;
pub(crate) mod models;
pub(crate) mod oauth;
pub(crate) mod preupload;
pub(crate) mod refs;
pub(crate) mod repositories;
pub(crate) mod resolve;
pub(crate) mod tree;
pub(crate) mod whoami;
pub(crate) mod xet;
