//! The GGUF files of one model: a single one, or all parts of a split one in any order. Blobs have no file
//! names, so only the metadata of each part identifies it.

use std::path::PathBuf;

use lode_model::gguf::{Header, Metadata};

use crate::engine::LoadError;

/// Returns the model's metadata, which is in the first part; `None` without GGUF files.
pub(super) fn join(files: Vec<(PathBuf, Header)>) -> Result<Option<Metadata>, LoadError> {
    let refused = |path: &PathBuf, reason: String| Err(LoadError::Header { path: path.clone(), reason });
    let n = files.len() as u64;
    let tensors: u64 = files.iter().map(|(_, header)| header.tensors.len() as u64).sum();
    let mut seen = vec![false; files.len()];
    let mut first = None;
    for (path, header) in files {
        let count = header.metadata.u64("split.count").filter(|count| *count > 0);
        match count {
            None if n == 1 => return Ok(Some(header.metadata)),
            None => {
                return refused(
                    &path,
                    format!("there are {n} GGUF files, but this is not a part of a split one"),
                );
            }
            Some(count) if count != n => {
                return refused(&path, format!("it is one of {count} files, but there are {n}"));
            }
            Some(_) => {}
        }
        let number = header.metadata.u64("split.no").unwrap_or(u64::MAX);
        match usize::try_from(number).ok().and_then(|number| seen.get_mut(number)) {
            Some(seen) if !*seen => *seen = true,
            Some(_) => return refused(&path, format!("there are two files with number {number}")),
            None => return refused(&path, "it has no valid part number (`split.no`)".into()),
        }
        if number == 0 {
            let expected = header.metadata.u64("split.tensors.count").unwrap_or(tensors);
            if expected != tensors {
                return refused(
                    &path,
                    format!("its files have {tensors} tensors together, expected {expected}"),
                );
            }
            first = Some(header.metadata);
        }
    }
    // Every number below the count was seen, so one of them was 0.
    Ok(first)
}
