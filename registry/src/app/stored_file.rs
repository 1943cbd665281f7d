//! A file of a stored model: the parts of blobs that it consists of.

use std::ops::Range;
use std::sync::Arc;

use lode_model::digest::Digest;
use lode_model::files_view::{FileEntry, Segment};

/// A file as the parts of blobs that it consists of, with the offset at which each begins.
#[derive(Clone, Debug)]
pub(super) struct StoredFile {
    pub(super) size: u64,
    pub(super) digest: Option<Digest>,
    pub(super) segments: Arc<[(u64, Segment)]>,
}

impl StoredFile {
    pub(super) fn new(entry: FileEntry) -> StoredFile {
        let mut start = 0;
        let placed = entry.segments.into_iter().map(|segment| {
            let at = start;
            start += segment.len();
            (at, segment)
        });
        StoredFile { segments: placed.collect(), size: entry.size, digest: entry.digest }
    }

    /// The segments that a range of the file touches, by position, each with the range within it.
    pub(super) fn parts(&self, range: Range<u64>) -> Vec<(usize, Range<u64>)> {
        let mut at = self.segments.partition_point(|(start, segment)| start + segment.len() <= range.start);
        let mut parts = Vec::new();
        while let Some((start, segment)) = self.segments.get(at).filter(|(start, _)| *start < range.end) {
            let within = range.start.saturating_sub(*start)..segment.len().min(range.end - start);
            if within.start < within.end {
                parts.push((at, within));
            }
            at += 1;
        }
        parts
    }

    /// The blob of the only segment, if the segment begins where the blob does.
    pub(super) fn single_blob(&self) -> Option<&Digest> {
        match &*self.segments {
            [(_, Segment::Blob { digest, offset: 0, .. })] => Some(digest),
            _ => None,
        }
    }

    /// An estimate of its memory.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = |(_, segment): &(u64, Segment)| match segment {
            Segment::Inline { inline } => inline.len(),
            Segment::Blob { digest, .. } => digest.as_str().len(),
        };
        self.segments.iter().map(|segment| (size_of::<(u64, Segment)>() + bytes(segment)) as u64).sum()
    }
}
