//! Shards: records of 48 bytes. The first part lists files, each with the chunks of which it consists and its
//! sha256. The second part lists the chunks of xorbs; they are in the xorbs, too, so that it is not read.

use super::hash::XetHash;
use crate::digest::Digest;

/// The most bytes of a shard.
pub const MAX_SHARD_BYTES: u64 = 64 << 20;
/// The most records of the part that lists files.
pub const MAX_FILE_RECORDS: usize = 128 << 10;

pub const RECORD_BYTES: usize = 48;
const TAG: [u8; 32] =
    *b"HFRepoMetaData\0\x55\x69\x67\x45\x6a\x7b\x81\x57\x83\xa5\xbd\xd9\x5c\xcd\xd1\x4a\xa9";
const VERSION: u64 = 2;
/// In the place of the hash: the end of a part.
const END: [u8; 32] = [0xff; 32];
/// A hash for each term follows the terms.
const WITH_VERIFICATION: u32 = 1 << 31;
/// The file's sha256 follows.
const WITH_METADATA: u32 = 1 << 30;

/// Why a shard is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShardError {
    #[error("this is no shard")]
    Tag,
    #[error("the shard has version {version}, expected {VERSION}")]
    Version { version: u64 },
    #[error("the shard ends within its list of files")]
    Truncated,
    #[error("the shard has more than {MAX_FILE_RECORDS} records about files; upload fewer files at once")]
    TooManyRecords,
    #[error("file {file} has unknown flags {flags:#x}")]
    Flags { file: XetHash, flags: u32 },
    #[error("file {file} has no sha256")]
    Sha256Missing { file: XetHash },
    #[error("file {file} names chunks {first} to {end} of a xorb, which are none")]
    Term { file: XetHash, first: u32, end: u32 },
}

/// A file of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFile {
    pub hash: XetHash,
    pub sha256: Digest,
    /// The content, in its order.
    pub terms: Vec<Term>,
}

/// Consecutive chunks of a xorb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub xorb: XetHash,
    pub unpacked_bytes: u32,
    /// The first chunk, and the one after the last.
    pub first: u32,
    pub end: u32,
}

impl ShardFile {
    pub fn size_bytes(&self) -> u64 {
        self.terms.iter().map(|term| u64::from(term.unpacked_bytes)).sum()
    }
}

/// Reads the files of a shard that arrives in pieces.
#[derive(Default)]
pub struct ShardReader {
    rest: Vec<u8>,
    records: usize,
    state: State,
    files: Vec<ShardFile>,
}

#[derive(Default)]
enum State {
    #[default]
    Header,
    /// Before a file, or the end of the list.
    File,
    Within(PartialFile),
    Ended,
}

struct PartialFile {
    hash: XetHash,
    terms_left: u32,
    verifications_left: u32,
    terms: Vec<Term>,
}

impl ShardReader {
    pub fn push(&mut self, mut piece: &[u8]) -> Result<(), ShardError> {
        while !piece.is_empty() && !matches!(self.state, State::Ended) {
            let (now, later) = piece.split_at(piece.len().min(RECORD_BYTES - self.rest.len()));
            self.rest.extend_from_slice(now);
            piece = later;
            if let Ok(record) = <&[u8; RECORD_BYTES]>::try_from(&self.rest[..]) {
                let record = *record;
                self.rest.clear();
                self.record(&record)?;
            }
        }
        Ok(())
    }

    /// How many records about files were read.
    pub fn records(&self) -> usize {
        self.records
    }

    pub fn finish(self) -> Result<Vec<ShardFile>, ShardError> {
        match self.state {
            State::Ended => Ok(self.files),
            _ => Err(ShardError::Truncated),
        }
    }

    fn record(&mut self, record: &[u8; RECORD_BYTES]) -> Result<(), ShardError> {
        self.records += 1;
        if self.records > MAX_FILE_RECORDS {
            return Err(ShardError::TooManyRecords);
        }
        let (hash, fields) = record.split_first_chunk::<32>().expect("a record has 48 bytes");
        let field = |at: usize| {
            let [a, b, c, d] = fields[4 * at..4 * (at + 1)] else { unreachable!("four bytes") };
            u32::from_le_bytes([a, b, c, d])
        };
        let [first, second, third, fourth] = [0, 1, 2, 3].map(field);
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Header => {
                if *hash != TAG {
                    return Err(ShardError::Tag);
                }
                let version = u64::from(second) << 32 | u64::from(first);
                if version != VERSION {
                    return Err(ShardError::Version { version });
                }
                State::File
            }
            State::File if *hash == END => State::Ended,
            State::File => {
                let (hash, flags, count) = (XetHash::from_bytes(*hash), first, second);
                if flags & !(WITH_VERIFICATION | WITH_METADATA) != 0 {
                    return Err(ShardError::Flags { file: hash, flags });
                }
                if flags & WITH_METADATA == 0 {
                    return Err(ShardError::Sha256Missing { file: hash });
                }
                let verifications_left = if flags & WITH_VERIFICATION != 0 { count } else { 0 };
                State::Within(PartialFile { hash, terms_left: count, verifications_left, terms: Vec::new() })
            }
            State::Within(mut file) if file.terms_left > 0 => {
                file.terms_left -= 1;
                let (unpacked_bytes, first, end) = (second, third, fourth);
                if first >= end {
                    return Err(ShardError::Term { file: file.hash, first, end });
                }
                file.terms.push(Term { xorb: XetHash::from_bytes(*hash), unpacked_bytes, first, end });
                State::Within(file)
            }
            State::Within(mut file) if file.verifications_left > 0 => {
                file.verifications_left -= 1;
                State::Within(file)
            }
            State::Within(PartialFile { hash: file, terms, .. }) => {
                // It is stored in the order of the other hashes.
                let sha256 = format!("sha256:{}", XetHash::from_bytes(*hash));
                let sha256 = sha256.parse().expect("64 lower-case digits are a sha256");
                self.files.push(ShardFile { hash: file, sha256, terms });
                State::File
            }
            State::Ended => State::Ended,
        };
        Ok(())
    }
}
