//! Test content: reproducible random bytes, their digests, and manifests.
//! Digests are computed with the hash crate directly, never with the code under test.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};

use crate::oci::{IMAGE_MANIFEST, Registry};

/// The SHA-256 digest of bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// The SHA-512 digest of bytes.
#[must_use]
pub fn sha512(bytes: &[u8]) -> String {
    format!("sha512:{}", hex(&Sha512::digest(bytes)))
}

/// Lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The same random bytes for the same seed.
#[must_use]
pub fn random_bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// A seed that no other test of this process uses.
#[must_use]
pub fn fresh_seed() -> u64 {
    rand::random()
}

/// The descriptor of a blob.
#[must_use]
pub fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": sha256(bytes), "size": bytes.len() })
}

/// An image manifest with its blobs.
#[derive(Clone)]
pub struct Image {
    /// The config blob.
    pub config: Vec<u8>,
    /// The layer blobs.
    pub layers: Vec<Vec<u8>>,
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
}

impl Image {
    /// An image with `n_layers` layers of random bytes.
    #[must_use]
    pub fn random(seed: u64, n_layers: usize, layer_bytes: usize) -> Self {
        let layers = (0..n_layers as u64)
            .map(|i| random_bytes(seed.wrapping_mul(31).wrapping_add(i), layer_bytes))
            .collect();
        Self::of(format!(r#"{{"seed":"{seed}"}}"#).into_bytes(), layers, &json!({}))
    }

    /// An image with the given blobs. The fields of `extra` (annotations, subject, artifactType ...) are
    /// added to the manifest.
    #[must_use]
    pub fn of(config: Vec<u8>, layers: Vec<Vec<u8>>, extra: &Value) -> Self {
        let mut manifest = json!({
            "schemaVersion": 2,
            "mediaType": IMAGE_MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter().map(|l| descriptor("application/vnd.oci.image.layer.v1.tar", l)).collect::<Vec<_>>(),
        });
        for (key, value) in extra.as_object().into_iter().flatten() {
            manifest[key] = value.clone();
        }
        let manifest = serde_json::to_vec_pretty(&manifest).expect("a JSON value");
        Self { config, layers, manifest }
    }

    /// The manifest's digest.
    #[must_use]
    pub fn digest(&self) -> String {
        sha256(&self.manifest)
    }

    /// The blobs, config first.
    pub fn blobs(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.config.as_slice()).chain(self.layers.iter().map(Vec::as_slice))
    }

    /// Pushes the blobs, then the manifest, and returns its digest.
    pub async fn push(&self, registry: &Registry, repository: &str, reference: &str) -> String {
        for blob in self.blobs() {
            registry.blob_push(repository, blob).await;
        }
        let response =
            registry.manifest_put(repository, reference, IMAGE_MANIFEST, &self.manifest).await.expect(201);
        assert_eq!(response.header("docker-content-digest"), Some(self.digest().as_str()));
        self.digest()
    }

    /// Fails the test unless the registry returns the same manifest and blobs.
    pub async fn check(&self, registry: &Registry, repository: &str, reference: &str) {
        let response = registry.manifest_get(repository, reference).await.expect(200);
        assert_eq!(
            response.body, self.manifest,
            "the registry returns different bytes for the manifest {repository}:{reference}"
        );
        for blob in self.blobs() {
            let response = registry.blob_get(repository, &sha256(blob)).await.expect(200);
            assert!(
                response.body == blob,
                "the registry returns different bytes for the blob {} of {repository}",
                sha256(blob)
            );
        }
    }
}

/// A manifest without layers that refers to a subject.
#[must_use]
pub fn referrer(subject: &Value, artifact_type: Option<&str>, annotations: &Value) -> Image {
    let mut extra = json!({ "subject": subject, "annotations": annotations });
    if let Some(artifact_type) = artifact_type {
        extra["artifactType"] = artifact_type.into();
    }
    Image::of(b"{}".to_vec(), vec![], &extra)
}
