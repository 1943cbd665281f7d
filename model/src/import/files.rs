//! Reads and checks the files of an imported folder. Limits on their sizes bound the memory of an import.

use std::io;

use super::error::ImportError;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::files_view;
use crate::read_at::ReadAt;
use crate::source::{Source, SourceFile};

/// The file that describes a model, and how its weights were quantised.
pub(super) const CONFIG: &str = "config.json";

/// The largest JSON file that is parsed, in bytes; larger ones are stored unread.
pub const MAX_JSON_BYTES: u64 = 64 * 1024 * 1024;
/// The largest configuration that is parsed, in bytes. A parsed configuration takes many times its length;
/// real ones have a few kilobytes.
const MAX_CONFIG_BYTES: u64 = 4 * 1024 * 1024;

/// Bounds the headers that an import keeps in memory. Each header has a limit of its own, and a folder may have
/// thousands of them.
pub(super) struct HeaderBudget {
    limit: u64,
    left: u64,
}

impl HeaderBudget {
    pub(super) fn new(limit: u64) -> HeaderBudget {
        HeaderBudget { limit, left: limit }
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Counts the header of the file at `path`.
    pub(super) fn take(&mut self, path: &str, header_bytes: u64) -> Result<(), ImportError> {
        self.left = self.left.checked_sub(header_bytes).ok_or_else(|| self.exceeded(path))?;
        Ok(())
    }

    /// The error for a file whose header is longer than what is left.
    pub(super) fn exceeded(&self, path: &str) -> ImportError {
        ImportError::HeadersTooLarge { path: path.to_owned(), limit: self.limit }
    }
}

/// Checks the paths of a sorted list of files.
pub(super) fn check_files(files: &[SourceFile]) -> Result<(), ImportError> {
    if files.is_empty() {
        return Err(ImportError::Empty);
    }
    if files.len() > files_view::MAX_FILES {
        return Err(ImportError::TooManyFiles { found: files.len() });
    }
    for file in files {
        files_view::check_path(&file.path)?;
    }
    if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(ImportError::DuplicatePath { path: pair[0].path.clone() });
    }
    Ok(())
}

/// Git LFS leaves a few lines of text in place of a large file that was not fetched.
pub(super) fn check_pointers(source: &dyn Source, files: &[SourceFile]) -> Result<(), ImportError> {
    const MAX_BYTES: u64 = 1024;
    for file in files.iter().filter(|file| file.size <= MAX_BYTES) {
        let is_tokenizer = file.path.to_ascii_lowercase().ends_with("tokenizer.json");
        if (is_tokenizer || file.weight_format().is_some())
            && read_file(source, file)?.starts_with(b"version https://git-lfs.github.com/spec/")
        {
            return Err(ImportError::Pointer { path: file.path.clone() });
        }
    }
    Ok(())
}

/// Hashes a file of the source, for the files that [`super::Plan::files_to_hash`] lists.
pub fn hash_file(source: &dyn Source, path: &str) -> io::Result<Digest> {
    const CHUNK: u64 = 1 << 20;
    let file = source.open(path)?;
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let mut chunk = vec![0; CHUNK.min(file.len()) as usize];
    let mut at = 0;
    while at < file.len() {
        let chunk = &mut chunk[..CHUNK.min(file.len() - at) as usize];
        file.read_at(at, chunk)?;
        hasher.update(chunk);
        at += chunk.len() as u64;
    }
    Ok(hasher.finish())
}

/// Parses a JSON file piece by piece, without holding the file in memory.
pub(super) fn parse_file<T: serde::de::DeserializeOwned>(
    source: &dyn Source,
    file: &SourceFile,
) -> Result<serde_json::Result<T>, ImportError> {
    let failed = |source| ImportError::Read { path: file.path.clone(), source };
    let reader = FileReader { file: source.open(&file.path).map_err(failed)?, at: 0 };
    let parsed = serde_json::from_reader(io::BufReader::with_capacity(PIECE_BYTES, reader));
    match parsed {
        Err(error) if error.is_io() => Err(failed(error.into())),
        parsed => Ok(parsed),
    }
}

/// The number of bytes of a file that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// Reads a file from start to end.
struct FileReader {
    file: Box<dyn ReadAt>,
    at: u64,
}

impl io::Read for FileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.file.len() - self.at).unwrap_or(usize::MAX);
        let len = buf.len().min(rest);
        self.file.read_at(self.at, &mut buf[..len])?;
        self.at += len as u64;
        Ok(len)
    }
}

/// Reads the whole of a small file.
pub(super) fn read_file(source: &dyn Source, file: &SourceFile) -> Result<Vec<u8>, ImportError> {
    let limit = if file.path == CONFIG { MAX_CONFIG_BYTES } else { MAX_JSON_BYTES };
    if file.size > limit {
        return Err(ImportError::TooLarge { path: file.path.clone(), limit });
    }
    let read = || {
        let opened = source.open(&file.path)?;
        let len = usize::try_from(opened.len().min(limit)).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        opened.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| ImportError::Read { path: file.path.clone(), source })
}
