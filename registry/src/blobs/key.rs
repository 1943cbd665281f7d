//! Where bytes lie: the only place that formats a key of the storage.
//! Blobs follow the OCI image layout, so that other tools, and a worker on this machine, can read the folder.

use lode_model::digest::{Algorithm, Digest};
use uuid::Uuid;

pub(crate) const BLOBS: &str = "blobs";
pub(crate) const UPLOADS: &str = "uploads";
pub(crate) const ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Sha512];

pub(crate) fn blob(digest: &Digest) -> String {
    format!("{BLOBS}/{}/{}", digest.algorithm(), digest.hex())
}

pub(crate) fn upload(id: Uuid) -> String {
    format!("{UPLOADS}/{id}")
}

/// Bytes that are written whole and then moved to their key.
pub(crate) fn temporary(id: Uuid) -> String {
    format!("{UPLOADS}/{id}.tmp")
}

/// The digest that a blob's key stands for.
pub(crate) fn digest_of(key: &str) -> Option<Digest> {
    let (algorithm, hex) = key.strip_prefix(BLOBS)?.strip_prefix('/')?.split_once('/')?;
    format!("{algorithm}:{hex}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_reversible() {
        for algorithm in ALGORITHMS {
            let digest = Digest::of(algorithm, b"x");
            assert_eq!(digest_of(&blob(&digest)), Some(digest));
        }
        for other in ["blobs/sha256/zz", "uploads/sha256/00", "blobs/index.json", "blobs"] {
            assert_eq!(digest_of(other), None, "{other}");
        }
    }
}
