//! The OCI side of a model: names, digests, media types, manifests, and the two JSON blobs that ollama's config
//! and Lode's file view are. Every other folder may use these types.

pub mod config;
pub mod digest;
pub mod files_view;
pub mod manifest;
pub mod media_type;
pub mod reference;
