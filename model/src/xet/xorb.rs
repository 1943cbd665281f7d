//! Xorbs: up to 64 MiB of chunks, each with a header of eight bytes and mostly compressed. Older clients
//! append an index, which begins with a byte that is no version of a chunk; it is skipped.

use std::io::Read;
use std::ops::Range;

use lz4_flex::frame::FrameDecoder;

use super::hash::XetHash;

/// The largest chunk, before and after compression.
pub const MAX_CHUNK_BYTES: u32 = 128 << 10;
/// The most chunks of a xorb.
pub const MAX_CHUNKS: usize = 8192;
/// The most bytes of a xorb's chunks, uncompressed.
pub const MAX_UNPACKED_BYTES: u64 = 64 << 20;
/// The most bytes of a xorb as it is uploaded: the chunks uncompressed, and an index.
pub const MAX_XORB_BYTES: u64 = MAX_UNPACKED_BYTES + (2 << 20);

const HEADER_BYTES: usize = 8;
/// The version of chunks, and their first byte.
const VERSION: u8 = 0;
/// The bytes of a [`ChunkIndex`] for each chunk.
const ENTRY_BYTES: usize = 8;

/// Why a xorb is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum XorbError {
    #[error("the xorb has no chunks")]
    Empty,
    #[error("the xorb ends within a chunk")]
    Truncated,
    #[error("the xorb has more than {MAX_CHUNKS} chunks")]
    TooManyChunks,
    #[error("the chunks of the xorb have more than {MAX_UNPACKED_BYTES} bytes")]
    TooLarge,
    #[error("a chunk has {bytes} bytes, expected 1 to {MAX_CHUNK_BYTES}")]
    ChunkSize { bytes: u32 },
    #[error("a chunk has the unknown compression scheme {scheme}")]
    Scheme { scheme: u8 },
    #[error("a chunk cannot be decompressed to the {expected} bytes of its header")]
    Compression { expected: u32 },
    #[error("chunks {first} to {end} are not in the xorb, which has {count}")]
    Range { first: u32, end: u32, count: usize },
}

/// How a chunk is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Plain,
    Lz4,
    /// The bytes at positions 0, 4, 8 and so on first, then those at 1, 5, 9, and so on; then LZ4. It suits
    /// floats.
    GroupedLz4,
}

#[derive(Clone, Copy, Debug)]
struct ChunkHeader {
    scheme: Scheme,
    stored_bytes: u32,
    unpacked_bytes: u32,
}

impl ChunkHeader {
    fn parse(header: &[u8; HEADER_BYTES]) -> Result<ChunkHeader, XorbError> {
        let [_, a, b, c, scheme, x, y, z] = *header;
        let scheme = match scheme {
            0 => Scheme::Plain,
            1 => Scheme::Lz4,
            2 => Scheme::GroupedLz4,
            scheme => return Err(XorbError::Scheme { scheme }),
        };
        let (stored_bytes, unpacked_bytes) =
            (u32::from_le_bytes([a, b, c, 0]), u32::from_le_bytes([x, y, z, 0]));
        match [stored_bytes, unpacked_bytes].into_iter().find(|bytes| !(1..=MAX_CHUNK_BYTES).contains(bytes))
        {
            Some(bytes) => Err(XorbError::ChunkSize { bytes }),
            None => Ok(ChunkHeader { scheme, stored_bytes, unpacked_bytes }),
        }
    }

    /// The content of the chunk.
    fn unpack(&self, stored: &[u8]) -> Result<Vec<u8>, XorbError> {
        let failed = XorbError::Compression { expected: self.unpacked_bytes };
        let mut unpacked = Vec::with_capacity(self.unpacked_bytes as usize);
        match self.scheme {
            Scheme::Plain => unpacked.extend_from_slice(stored),
            Scheme::Lz4 | Scheme::GroupedLz4 => {
                // One byte more than expected, to notice more.
                let mut decoder = FrameDecoder::new(stored).take(u64::from(self.unpacked_bytes) + 1);
                if decoder.read_to_end(&mut unpacked).is_err() {
                    return Err(failed);
                }
            }
        }
        match unpacked.len() == self.unpacked_bytes as usize {
            true if self.scheme == Scheme::GroupedLz4 => Ok(ungroup(&unpacked)),
            true => Ok(unpacked),
            false => Err(failed),
        }
    }
}

/// Undoes the grouping of bytes. The first groups are one byte longer if the length is no multiple of four.
fn ungroup(grouped: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; grouped.len()];
    let mut rest = grouped;
    for group in 0..4 {
        let (these, others) = rest.split_at((grouped.len() + 3 - group) / 4);
        bytes[group.min(grouped.len())..].iter_mut().step_by(4).zip(these).for_each(|(to, from)| *to = *from);
        rest = others;
    }
    bytes
}

/// A chunk of a xorb.
pub struct Chunk {
    /// With its header.
    pub stored_bytes: u32,
    pub content: Vec<u8>,
}

/// Reads chunks from bytes that arrive in pieces. It keeps less than one chunk.
#[derive(Default)]
pub struct ChunkReader {
    rest: Vec<u8>,
    is_at_index: bool,
}

impl ChunkReader {
    /// Passes the chunks that the piece completes to `each`.
    pub fn push(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(Chunk) -> Result<(), XorbError>,
    ) -> Result<(), XorbError> {
        if self.is_at_index {
            return Ok(());
        }
        self.rest.extend_from_slice(piece);
        let mut at = 0;
        while let Some((header, after)) = self.rest[at..].split_first_chunk() {
            if header[0] != VERSION {
                self.is_at_index = true;
                break;
            }
            let header = ChunkHeader::parse(header)?;
            let Some(stored) = after.get(..header.stored_bytes as usize) else { break };
            let content = header.unpack(stored)?;
            at += HEADER_BYTES + stored.len();
            each(Chunk { stored_bytes: header.stored_bytes + HEADER_BYTES as u32, content })?;
        }
        self.rest.drain(..at);
        Ok(())
    }

    /// Checks that the last chunk is complete.
    pub fn finish(&self) -> Result<(), XorbError> {
        match self.is_at_index || self.rest.is_empty() {
            true => Ok(()),
            false => Err(XorbError::Truncated),
        }
    }
}

/// Computes the hash of a xorb that arrives in pieces, and checks every chunk.
#[derive(Default)]
pub struct XorbHasher {
    reader: ChunkReader,
    chunks: Vec<(XetHash, u64)>,
    index: ChunkIndex,
}

impl XorbHasher {
    pub fn push(&mut self, piece: &[u8]) -> Result<(), XorbError> {
        let XorbHasher { reader, chunks, index } = self;
        reader.push(piece, |chunk| {
            chunks.push((XetHash::of_chunk(&chunk.content), chunk.content.len() as u64));
            index.add(&chunk)
        })
    }

    pub fn finish(self) -> Result<(XetHash, ChunkIndex), XorbError> {
        self.reader.finish()?;
        match self.chunks.is_empty() {
            true => Err(XorbError::Empty),
            false => Ok((XetHash::of_chunks(self.chunks), self.index)),
        }
    }
}

/// Where each chunk of a xorb is stored in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkIndex {
    chunks: Vec<IndexEntry>,
}

/// The ends of a chunk in the xorb and in the uncompressed data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IndexEntry {
    stored_end: u32,
    unpacked_end: u32,
}

/// Consecutive chunks of a xorb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// Their bytes in the xorb.
    pub stored: Range<u64>,
    pub unpacked_bytes: u64,
}

impl ChunkIndex {
    fn add(&mut self, chunk: &Chunk) -> Result<(), XorbError> {
        if self.chunks.len() == MAX_CHUNKS {
            return Err(XorbError::TooManyChunks);
        }
        let IndexEntry { stored_end, unpacked_end } = self.chunks.last().copied().unwrap_or_default();
        // Below 64 MiB and the headers before this chunk, so that the sums fit.
        let (stored_end, unpacked_end) =
            (stored_end + chunk.stored_bytes, unpacked_end + chunk.content.len() as u32);
        if u64::from(unpacked_end) > MAX_UNPACKED_BYTES || u64::from(stored_end) > MAX_XORB_BYTES {
            return Err(XorbError::TooLarge);
        }
        self.chunks.push(IndexEntry { stored_end, unpacked_end });
        Ok(())
    }

    /// The bytes of all chunks in the xorb.
    pub fn stored_bytes(&self) -> u64 {
        self.chunks.last().map_or(0, |entry| u64::from(entry.stored_end))
    }

    /// The chunks from `first` to `end`, excluded.
    pub fn range(&self, first: u32, end: u32) -> Result<ChunkRange, XorbError> {
        let before = |chunk: u32| match chunk {
            0 => Some(IndexEntry::default()),
            chunk => self.chunks.get(chunk as usize - 1).copied(),
        };
        match (before(first), before(end)) {
            (Some(from), Some(to)) if first < end => Ok(ChunkRange {
                stored: u64::from(from.stored_end)..u64::from(to.stored_end),
                unpacked_bytes: u64::from(to.unpacked_end - from.unpacked_end),
            }),
            _ => Err(XorbError::Range { first, end, count: self.chunks.len() }),
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let entry = |entry: &IndexEntry| [entry.stored_end.to_le_bytes(), entry.unpacked_end.to_le_bytes()];
        self.chunks.iter().flat_map(entry).flatten().collect()
    }

    /// Reads what [`ChunkIndex::to_bytes`] has written. `None` if it is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Option<ChunkIndex> {
        let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        let chunks: Vec<IndexEntry> = entries
            .iter()
            .map(|&[a, b, c, d, e, f, g, h]| IndexEntry {
                stored_end: u32::from_le_bytes([a, b, c, d]),
                unpacked_end: u32::from_le_bytes([e, f, g, h]),
            })
            .collect();
        let grows = |pair: &[IndexEntry]| {
            pair[0].stored_end < pair[1].stored_end && pair[0].unpacked_end < pair[1].unpacked_end
        };
        (rest.is_empty() && chunks.len() <= MAX_CHUNKS && chunks.windows(2).all(grows))
            .then_some(ChunkIndex { chunks })
    }
}
