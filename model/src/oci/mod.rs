//! The OCI side of a model: names, digests, media types, manifests, and the two JSON blobs with a fixed form,
//! ollama's config and Lode's file view. Every other folder may use these types.

pub mod config;
pub mod digest;
pub mod files_view;
pub mod manifest;
pub mod media_type;
pub(crate) mod new_manifest;
pub mod reference;
