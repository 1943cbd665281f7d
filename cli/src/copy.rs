//! Copies manifests and blobs between repositories and registries.

use std::{
    collections::HashSet,
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use lode_client::{BlobInfo, Destination, Offer, Progress, RawManifest};
use lode_model::{
    digest::Digest,
    manifest::{Descriptor, Manifest},
    reference::Reference,
};

use crate::{
    connect::{self, Target},
    error::{Failure, Outcome},
    files::{self, FileContent},
    send::UploadStats,
    ui,
};

const MAX_CONCURRENT_BLOBS: usize = 6;
/// Limit for nested indexes.
const MAX_DEPTH: usize = 8;

/// Copies the blobs of one manifest to another repository or registry.
pub(crate) async fn copy_blobs(
    source: &Target,
    destination: &Target,
    manifest: &Manifest,
) -> Outcome<UploadStats> {
    let copy = Copy::new(source, destination);
    let sent = copy.blobs_of(std::slice::from_ref(manifest)).await?;
    copy.end();
    Ok(sent)
}

/// A copy of manifests and their blobs from one repository to another.
pub(crate) struct Copy<'a> {
    source: &'a Target,
    destination: &'a Target,
    meter: Arc<ui::Meter>,
}

impl<'a> Copy<'a> {
    pub(crate) fn new(source: &'a Target, destination: &'a Target) -> Copy<'a> {
        Copy { source, destination, meter: ui::Meter::bytes("copying", 0) }
    }

    /// Ends the progress display.
    pub(crate) fn end(&self) {
        self.meter.end();
    }

    fn parse(raw: &RawManifest) -> Outcome<Manifest> {
        Manifest::parse(Some(&raw.media_type), &raw.bytes)
            .map_err(|error| Failure::with_source(format!("manifest {}", raw.digest), &error))
    }

    /// Fetches the manifest and all manifests that it lists, parents first. Each comes with its reference at
    /// the destination.
    pub(crate) async fn gather(&self, root: RawManifest) -> Outcome<Vec<(RawManifest, Reference)>> {
        let mut seen = HashSet::from([root.digest.clone()]);
        let mut all = vec![(root, self.destination.reference.clone())];
        let (mut from, mut depth) = (0, 0);
        while from < all.len() {
            if depth == MAX_DEPTH {
                return Err(Failure::new(format!(
                    "{} nests indexes more than {MAX_DEPTH} levels deep",
                    self.source
                )));
            }
            let mut children: Vec<Descriptor> = Vec::new();
            for (raw, _) in &all[from..] {
                children.extend(
                    Self::parse(raw)?.children().filter(|child| seen.insert(child.digest.clone())).cloned(),
                );
            }
            from = all.len();
            depth += 1;
            let fetched: Vec<Option<RawManifest>> = futures::stream::iter(children)
                .map(|child| async move {
                    let reference = Reference::Digest(child.digest);
                    match self.source.registry.manifest_get(&self.source.repository, &reference).await {
                        Ok(raw) => Ok(Some(raw)),
                        // A sparse index lists absent manifests. The copy is as sparse, if the destination
                        // allows it.
                        Err(error) if error.is_not_found() => Ok(None),
                        Err(error) => Err(error),
                    }
                })
                .buffered(MAX_CONCURRENT_BLOBS)
                .try_collect()
                .await?;
            all.extend(fetched.into_iter().flatten().map(|raw| {
                let reference = Reference::Digest(raw.digest.clone());
                (raw, reference)
            }));
        }
        Ok(all)
    }

    /// Copies the blobs of the manifests that the destination lacks.
    pub(crate) async fn blobs(&self, manifests: &[(RawManifest, Reference)]) -> Outcome<UploadStats> {
        let manifests: Vec<Manifest> =
            manifests.iter().map(|(raw, _)| Self::parse(raw)).collect::<Outcome<_>>()?;
        self.blobs_of(&manifests).await
    }

    async fn blobs_of(&self, manifests: &[Manifest]) -> Outcome<UploadStats> {
        let mut seen = HashSet::new();
        let blobs: Vec<Descriptor> = manifests
            .iter()
            .flat_map(Manifest::blobs)
            .filter(|blob| seen.insert(blob.digest.clone()))
            .cloned()
            .collect();
        let moved: Vec<(u64, bool)> = futures::stream::iter(blobs)
            .map(|blob| async move {
                let size = blob.size;
                self.blob(blob).await.map(|sent| (size, sent))
            })
            .buffer_unordered(MAX_CONCURRENT_BLOBS)
            .try_collect()
            .await?;
        let mut sent = UploadStats::default();
        for (size, travelled) in moved {
            let (blobs, bytes) = match travelled {
                true => (&mut sent.sent_blobs, &mut sent.sent_bytes),
                false => (&mut sent.shared_blobs, &mut sent.shared_bytes),
            };
            *blobs += 1;
            *bytes += size;
        }
        Ok(sent)
    }

    async fn blob(&self, blob: Descriptor) -> Outcome<bool> {
        let (source, destination) = (self.source, self.destination);
        let same = source.registry.url() == destination.registry.url();
        let from = same.then_some(&source.repository);
        let offer =
            destination.registry.blob_offer(&destination.repository, &blob.digest, blob.size, from).await?;
        let Offer::Needed(upload) = offer else { return Ok(false) };
        // Download to a file first: the blob is verified before it is uploaded, and the copy does not need
        // two connections at once.
        let folder = connect::cache_folder().unwrap_or_else(std::env::temp_dir).join("copies");
        let staged = StagedBlob::in_folder(&folder, &blob.digest)
            .map_err(|error| Failure::with_source(format!("cannot write to {}", folder.display()), &error))?;
        let path = staged.path.clone();
        let silent: Arc<dyn Progress> = Arc::new(lode_client::NoProgress);
        let content = Arc::new(FileContent { path: path.clone(), size: blob.size });
        let blob = BlobInfo { digest: blob.digest, size_bytes: blob.size };
        source.registry.blob_pull_to_file(&source.repository, &blob, &path, silent).await?;
        let sent = destination.registry.upload_send(upload, content, self.meter.clone()).await;
        files::blocking(move || drop(staged)).await;
        sent.map_err(|error| Failure::from(error).of_uploads(&destination.registry))?;
        Ok(true)
    }
}

/// The most copies of one blob at a time.
const MAX_COPIES: usize = 64;

/// The file that has a blob between its download and its upload. Only one copy uses it at a time. It is removed at the
/// end; an incomplete download stays, so that a repeated copy resumes it.
struct StagedBlob {
    path: PathBuf,
    lock: Destination,
    _locked: File,
}

impl StagedBlob {
    /// Locks the first file for this blob that no other copy uses.
    fn in_folder(folder: &Path, digest: &Digest) -> io::Result<StagedBlob> {
        std::fs::create_dir_all(folder)?;
        for number in 0..MAX_COPIES {
            let name = match number {
                0 => digest.hex().to_owned(),
                _ => format!("{}-{number}", digest.hex()),
            };
            let lock = Destination::at(&folder.join(format!("{name}.lock")))?;
            match lock.open_locked() {
                Ok(locked) => return Ok(StagedBlob { path: folder.join(name), lock, _locked: locked }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::other(format!(
            "{MAX_COPIES} other copies of {digest} are in progress; wait for them to end"
        )))
    }
}

impl Drop for StagedBlob {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
        let _gone = self.lock.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lode_model::digest::Algorithm;

    use super::*;

    #[test]
    fn two_copies_of_a_blob_have_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let digest = Digest::of(Algorithm::Sha256, b"x");
        let stage = || StagedBlob::in_folder(&folder.path().join("copies"), &digest).unwrap();
        let names = || {
            let entries = fs::read_dir(folder.path().join("copies")).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let (first, second) = (stage(), stage());
        assert_ne!(first.path, second.path);
        fs::write(&first.path, "x").unwrap();
        fs::write(&second.path, "x").unwrap();
        // The end of one copy leaves the file of the other.
        drop(second);
        assert_eq!(fs::read_to_string(&first.path).unwrap(), "x");
        let shared = first.path.clone();
        drop(first);
        assert_eq!(names(), [""; 0]);

        // A repeated copy finds what an incomplete one has fetched.
        let failed = stage();
        assert_eq!(failed.path, shared);
        fs::write(failed.path.with_extension("part"), "x").unwrap();
        drop(failed);
        assert_eq!(names(), [format!("{}.part", digest.hex())]);
        assert_eq!(stage().path, shared);
    }
}
