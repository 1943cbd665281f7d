//! The files of a stored manifest by path, and the lists of files that were read last.

use std::collections::BTreeMap;
use std::sync::Arc;

use lode_model::digest::{Algorithm, Digest, Hasher};
use lode_model::files_view::{FileEntry, FileViewError, MAX_VIEW_BYTES, Segment};
use lode_model::reference::Repository;
use moka::sync::Cache;
use tokio::sync::Semaphore;

use super::stored_file::StoredFile;
use crate::Error;

/// Approximate limit for the lists of files that are kept.
const CACHE_BYTES: u64 = 64 << 20;
/// An estimate of the memory of a listed file, without its literal bytes.
const FILE_BYTES: u64 = 512;
/// How many lists are read at a time.
const MAX_CONCURRENT_READS: usize = 2;

/// Why the files of a manifest cannot be listed or found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error(transparent)]
    Registry(#[from] Error),
    /// The text is the Hub's, with the tags that exist.
    #[error("Invalid rev id: {revision}{}", tags_hint(tags))]
    RevisionUnknown { revision: String, tags: Vec<String> },
    #[error("{revision} is an index of {manifests} manifests; use the digest of one of them as the revision")]
    Index { revision: String, manifests: usize },
    #[error("Entry not found: {path} is not in the revision {revision}")]
    EntryUnknown { path: String, revision: String, commit: String },
    #[error("the files of this revision cannot be listed")]
    Invalid(#[source] FileViewError),
    #[error(
        "the files of this revision cannot be listed: its file view has {size} bytes, expected at most {MAX_VIEW_BYTES}"
    )]
    ViewTooLarge { size: u64 },
}

fn tags_hint(tags: &[String]) -> String {
    if tags.is_empty() { String::new() } else { format!(" (there are: {})", tags.join(", ")) }
}

/// The files of a manifest, sorted by path.
#[derive(Debug, Default)]
pub(crate) struct ManifestFiles {
    pub(crate) files: BTreeMap<String, ManifestFile>,
}

#[derive(Clone, Debug)]
pub(crate) struct ManifestFile {
    pub(crate) size: u64,
    pub(crate) content: ContentId,
    pub(super) stored: StoredFile,
}

/// What identifies the bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentId {
    /// The sha256 of the bytes.
    Sha256(Digest),
    /// The sha256 of the list of parts that the file consists of, where the digest of the whole is not known.
    Parts(Digest),
}

impl ContentId {
    fn of(entry: &FileEntry) -> ContentId {
        match &entry.digest {
            Some(digest) if digest.algorithm() == Algorithm::Sha256 => ContentId::Sha256(digest.clone()),
            _ => ContentId::Parts(parts_digest(&entry.segments)),
        }
    }
}

fn parts_digest(segments: &[Segment]) -> Digest {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    for segment in segments {
        match segment {
            Segment::Inline { inline } => {
                hasher.update(format!("{}\n", Digest::sha256(inline)).as_bytes());
            }
            Segment::Blob { digest, offset, length } => {
                hasher.update(format!("{digest} {offset} {length}\n").as_bytes());
            }
        }
    }
    hasher.finish()
}

impl ManifestFiles {
    pub(super) fn new(entries: Vec<FileEntry>) -> ManifestFiles {
        let file = |entry: FileEntry| (entry.path.clone(), ManifestFile::new(entry));
        ManifestFiles { files: entries.into_iter().map(file).collect() }
    }

    /// An estimate of its memory.
    fn bytes(&self) -> u64 {
        self.files.iter().map(|(path, file)| FILE_BYTES + path.len() as u64 + file.stored.bytes()).sum()
    }
}

impl ManifestFile {
    pub(super) fn new(entry: FileEntry) -> ManifestFile {
        let (size, content) = (entry.size, ContentId::of(&entry));
        ManifestFile { size, content, stored: StoredFile::new(entry) }
    }

    /// The blobs that contain its bytes.
    pub(super) fn blobs(&self) -> impl Iterator<Item = &Digest> {
        self.stored.segments.iter().filter_map(|(_, segment)| match segment {
            Segment::Blob { digest, .. } => Some(digest),
            Segment::Inline { .. } => None,
        })
    }

    /// The blob whose bytes the file has, if it is a whole blob.
    pub(crate) fn as_blob(&self) -> Option<&Digest> {
        match &self.content {
            ContentId::Sha256(id) => self.stored.single_blob().filter(|digest| *digest == id),
            ContentId::Parts(_) => None,
        }
    }
}

/// The lists of files that were read last, by repository and manifest.
pub(super) struct FileLists {
    pub(super) known: Cache<(Repository, Digest), Arc<ManifestFiles>>,
    pub(super) reads: Semaphore,
}

impl Default for FileLists {
    fn default() -> FileLists {
        let weigh = |_: &(Repository, Digest), list: &Arc<ManifestFiles>| {
            u32::try_from(list.bytes()).unwrap_or(u32::MAX)
        };
        FileLists {
            known: Cache::builder().max_capacity(CACHE_BYTES).weigher(weigh).build(),
            reads: Semaphore::new(MAX_CONCURRENT_READS),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn file(segments: Vec<Segment>) -> ManifestFile {
        let size = segments.iter().map(Segment::len).sum();
        let entry = FileEntry { path: "a".to_owned(), size, digest: None, assembled: false, segments };
        ManifestFiles::new(vec![entry]).files.remove("a").unwrap()
    }

    fn blob(content: &[u8], offset: u64, length: u64) -> Segment {
        Segment::Blob { digest: Digest::sha256(content), offset, length }
    }

    #[test]
    fn a_range_needs_only_the_parts_that_it_touches() {
        let file = file(vec![
            Segment::Inline { inline: vec![0; 10] },
            blob(b"a", 4, 20),
            blob(b"empty", 0, 0),
            blob(b"b", 0, 5),
        ]);
        assert_eq!(file.size, 35);
        let parts = |range: Range<u64>| file.stored.parts(range);
        assert_eq!(parts(0..35), [(0, 0..10), (1, 0..20), (3, 0..5)]);
        assert_eq!(parts(9..11), [(0, 9..10), (1, 0..1)]);
        assert_eq!(parts(10..30), [(1, 0..20)]);
        assert_eq!(parts(30..31), [(3, 0..1)]);
        assert_eq!(parts(34..35), [(3, 4..5)]);
        assert_eq!(parts(5..5), []);
        assert_eq!(parts(35..40), []);
    }

    #[test]
    fn the_identity_of_a_file_follows_from_its_parts() {
        let ids: Vec<ContentId> = [
            vec![blob(b"a", 0, 5)],
            vec![blob(b"a", 1, 5)],
            vec![blob(b"b", 0, 5)],
            vec![Segment::Inline { inline: vec![1; 5] }],
        ]
        .map(|segments| file(segments).content)
        .into();
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[..at].contains(id));
        }
        assert_eq!(ids[0], file(vec![blob(b"a", 0, 5)]).content);
        let whole = FileEntry::whole("a".to_owned(), Digest::sha256(b"a"), 1);
        assert_eq!(ContentId::of(&whole), ContentId::Sha256(Digest::sha256(b"a")));
    }
}
