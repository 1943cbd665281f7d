//! `lode cat NAME FILE`: prints one file of a model, and downloads nothing else of it.

use lode_model::{
    digest::{Algorithm, Hasher},
    files_view::{FileEntry, Segment},
};

use crate::{
    args::Cat,
    connect::{Connection, Target},
    error::{Failure, Outcome},
    stored_files, ui,
};

/// Bytes per range request.
const PIECE: u64 = 8 << 20;
/// A file up to this size is verified before its first byte is printed.
const VERIFIED_FIRST: u64 = 64 << 20;

pub(crate) async fn run(connection: &Connection, args: Cat) -> Outcome {
    let target = connection.target(&args.name)?;
    let files = stored_files::list(&target, "lode cat").await?;
    let Some(entry) = files.entries.iter().find(|entry| entry.path == args.file) else {
        let names: Vec<String> = files.entries.into_iter().map(|entry| entry.path).collect();
        return Err(
            Failure::new(format!("{target} has no file `{}`", args.file)).hint(stored_files::shown(&names))
        );
    };
    print_file(&target, entry).await
}

async fn print_file(target: &Target, entry: &FileEntry) -> Outcome {
    let algorithm = entry.digest.as_ref().map_or(Algorithm::Sha256, |digest| digest.algorithm());
    let (mut hasher, mut held) = (Hasher::new(algorithm), Vec::new());
    let is_held = entry.size <= VERIFIED_FIRST;
    for segment in &entry.segments {
        let (mut offset, end) = match segment {
            Segment::Inline { inline } => (0, inline.len() as u64),
            Segment::Blob { offset, length, .. } => (*offset, offset.saturating_add(*length)),
        };
        while offset < end {
            let until = end.min(offset.saturating_add(PIECE));
            let piece = match segment {
                Segment::Inline { inline } => inline.clone().into(),
                Segment::Blob { digest, .. } => {
                    target.registry.blob_range(&target.repository, digest, offset..until).await?
                }
            };
            hasher.update(&piece);
            match is_held {
                true => held.extend_from_slice(&piece),
                false => ui::print_bytes(&piece)?,
            }
            offset = until.max(offset.saturating_add(piece.len() as u64));
        }
    }
    let got = hasher.finish();
    if let Some(expected) = entry.digest.as_ref().filter(|expected| **expected != got) {
        let path = &entry.path;
        return Err(Failure::new(format!("`{path}` of {target} is damaged: expected {expected}, got {got}"))
            .hint("`lode fsck --verify` checks the server's blobs"));
    }
    ui::print_bytes(&held)
}
