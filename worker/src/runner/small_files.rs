//! Reads the small files of a checkpoint, within limits.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use serde_json::Value;

use super::protocol::{Extent, ModelSpec, RunnerError, SmallFile};

/// Size limit of most files.
pub(super) const MAX_FILE_BYTES: u64 = 16 << 20;

/// Reads a small JSON file.
pub(super) fn read_json(spec: &ModelSpec, name: &str) -> Result<Option<Value>, RunnerError> {
    read_file(spec, name)?.map(|bytes| parse_json(name, &bytes)).transpose()
}

pub(super) fn read_file(spec: &ModelSpec, name: &str) -> Result<Option<Vec<u8>>, RunnerError> {
    read_file_up_to(spec, name, MAX_FILE_BYTES)
}

/// As [`read_file`], for at most this many bytes.
pub(super) fn read_file_up_to(
    spec: &ModelSpec,
    name: &str,
    limit: u64,
) -> Result<Option<Vec<u8>>, RunnerError> {
    spec.files.get(name).map(|file| read_limited(name, file, limit)).transpose()
}

/// Reads a file of at most this many bytes; `name` is for errors.
pub(super) fn read_limited(name: &str, file: &SmallFile, limit: u64) -> Result<Vec<u8>, RunnerError> {
    let failed = |error: io::Error| RunnerError::failed(format!("{name}: {error}"));
    let mut opened = File::open(&file.path).map_err(failed)?;
    let whole = Extent { offset: 0, size: opened.metadata().map_err(failed)?.len() };
    let Extent { offset, size } = file.extent.unwrap_or(whole);
    if size > limit {
        return Err(RunnerError::unsupported(format!("{name}: larger than {limit} bytes")));
    }
    opened.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = Vec::new();
    opened.take(size).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

pub(super) fn parse_json(name: &str, bytes: &[u8]) -> Result<Value, RunnerError> {
    serde_json::from_slice(bytes).map_err(|error| RunnerError::unsupported(format!("{name}: {error}")))
}
