//! Manifests and small blobs that are made here, rather than received.

use serde::Serialize;
use serde_json::{Map, Value};

use super::digest::Digest;
use super::manifest::Descriptor;

/// A blob made here, small enough to be held in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct SmallBlob {
    pub descriptor: Descriptor,
    pub bytes: Vec<u8>,
}

impl SmallBlob {
    pub(crate) fn new(media_type: &str, bytes: Vec<u8>) -> SmallBlob {
        let descriptor = Descriptor::new(media_type, Digest::sha256(&bytes), bytes.len() as u64);
        SmallBlob { descriptor, bytes }
    }
}

/// An image manifest that is to be written. The fields are written in this order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewManifest<'a> {
    schema_version: u8,
    media_type: &'a str,
    /// ollama ignores it; OCI clients look for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_type: Option<&'a str>,
    config: &'a Descriptor,
    layers: &'a [Descriptor],
    /// What the manifest refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<&'a Descriptor>,
    /// Texts by key, written in this order. ollama ignores them; OCI clients show them.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) annotations: Map<String, Value>,
}

impl<'a> NewManifest<'a> {
    pub(crate) fn new(
        media_type: &'a str,
        config: &'a Descriptor,
        layers: &'a [Descriptor],
    ) -> NewManifest<'a> {
        NewManifest {
            schema_version: 2,
            media_type,
            artifact_type: None,
            config,
            layers,
            subject: None,
            annotations: Map::new(),
        }
    }

    /// Writes the manifest as compact JSON. The same manifest always gives the same bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a struct of strings and numbers is always JSON")
    }
}
