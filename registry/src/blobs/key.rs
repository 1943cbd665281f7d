//! Storage keys; this is the only place that formats them. In a folder, blobs follow the OCI image layout, so
//! that other tools, and a worker on this machine, can read it. Object storage cannot rename for free, so a
//! blob keeps its upload's key, and the database has the location.

use lode_model::digest::{Algorithm, Digest};
use uuid::Uuid;

pub(crate) const BLOBS: &str = "blobs";
pub(crate) const UPLOADS: &str = "uploads";
pub(crate) const OBJECTS: &str = "objects";
pub(crate) const ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Sha512];

pub(crate) fn blob(digest: &Digest) -> String {
    format!("{BLOBS}/{}/{}", digest.algorithm(), digest.hex())
}

pub(crate) fn upload(id: Uuid) -> String {
    format!("{UPLOADS}/{id}")
}

/// The temporary key of bytes that are written whole and then linked at their own.
pub(crate) fn temporary(id: Uuid) -> String {
    format!("{UPLOADS}/{id}.tmp")
}

/// Prefix of the objects of an upload, and of the blob that it became. Tails have another prefix.
pub(crate) fn objects(id: Uuid) -> String {
    format!("{OBJECTS}/{id}")
}

/// An upload's object in object storage. Each generation has one writer, so no writer can overwrite another's
/// object.
pub(crate) fn object(id: Uuid, generation: i64) -> String {
    format!("{OBJECTS}/{id}/{generation}")
}

/// The bytes of an upload after its last complete part.
pub(crate) fn tail(id: Uuid, generation: i64) -> String {
    format!("{UPLOADS}/{id}/{generation}")
}

/// The upload that an object or a tail belongs to.
pub(crate) fn upload_of(key: &str) -> Option<Uuid> {
    let (folder, rest) = key.split_once('/')?;
    let (id, _) = rest.split_once('/')?;
    (folder == OBJECTS || folder == UPLOADS).then(|| id.parse().ok()).flatten()
}

/// The digest in a blob's key.
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
        let id = Uuid::new_v4();
        assert_eq!([upload_of(&object(id, 3)), upload_of(&tail(id, 0))], [Some(id), Some(id)]);
        for other in [upload(id), temporary(id), format!("blobs/{id}/1"), "objects/x/1".to_owned()] {
            assert_eq!(upload_of(&other), None, "{other}");
        }
    }
}
