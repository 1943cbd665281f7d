//! Xet's hashes: of chunks, and of the trees over them.

use std::fmt;
use std::str::FromStr;

/// The key of the hashes of chunks.
const CHUNK_KEY: [u8; 32] = [
    102, 151, 245, 119, 91, 149, 80, 222, 49, 53, 203, 172, 165, 151, 24, 28, 157, 228, 33, 16, 155, 235, 43,
    88, 180, 208, 176, 75, 147, 173, 242, 41,
];
/// The key of the hashes of inner nodes.
const NODE_KEY: [u8; 32] = [
    1, 126, 197, 199, 165, 71, 41, 150, 253, 148, 102, 102, 180, 138, 2, 230, 93, 221, 83, 111, 55, 199, 109,
    210, 248, 99, 82, 230, 74, 83, 113, 63,
];
/// A node ends after a child whose hash is a multiple of this, and has about as many children.
const MEAN_CHILDREN: u64 = 4;
const MIN_CHILDREN: usize = 3;
const MAX_CHILDREN: usize = 9;

/// A hash of Xet. As text, the bytes of each group of eight are in reverse order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XetHash([u8; 32]);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a hash of 64 lower-case hexadecimal digits")]
pub struct XetHashError;

impl XetHash {
    pub const fn from_bytes(bytes: [u8; 32]) -> XetHash {
        XetHash(bytes)
    }

    /// The hash of a chunk.
    pub fn of_chunk(bytes: &[u8]) -> XetHash {
        XetHash(*blake3::keyed_hash(&CHUNK_KEY, bytes).as_bytes())
    }

    /// The root of the tree over chunks with these hashes and lengths: the hash of a xorb. Zeros without
    /// chunks.
    pub fn of_chunks(chunks: Vec<(XetHash, u64)>) -> XetHash {
        let mut level = chunks;
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len() / MIN_CHILDREN + 1);
            let mut rest = &level[..];
            while !rest.is_empty() {
                let (children, others) = rest.split_at(children_of_next(rest));
                above.push(parent(children));
                rest = others;
            }
            level = above;
        }
        level.first().map_or(XetHash([0; 32]), |(hash, _)| *hash)
    }

    fn is_divider(&self) -> bool {
        let last = self.0.last_chunk().expect("a hash has 32 bytes");
        u64::from_le_bytes(*last) % MEAN_CHILDREN == 0
    }
}

/// How many of the nodes belong to the first parent.
fn children_of_next(nodes: &[(XetHash, u64)]) -> usize {
    let candidates = nodes.iter().take(MAX_CHILDREN).enumerate().skip(MIN_CHILDREN - 1);
    let divider = candidates.into_iter().find(|(_, (hash, _))| hash.is_divider());
    divider.map_or(nodes.len().min(MAX_CHILDREN), |(at, _)| at + 1)
}

fn parent(children: &[(XetHash, u64)]) -> (XetHash, u64) {
    let lines: String = children.iter().map(|(hash, len)| format!("{hash} : {len}\n")).collect();
    let len = children.iter().map(|(_, len)| len).sum();
    (XetHash(*blake3::keyed_hash(&NODE_KEY, lines.as_bytes()).as_bytes()), len)
}

impl fmt::Display for XetHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .as_chunks::<8>()
            .0
            .iter()
            .try_for_each(|group| write!(f, "{:016x}", u64::from_le_bytes(*group)))
    }
}

impl fmt::Debug for XetHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for XetHash {
    type Err = XetHashError;

    fn from_str(text: &str) -> Result<XetHash, XetHashError> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 64 || !text.bytes().all(is_digit) {
            return Err(XetHashError);
        }
        let mut bytes = [0; 32];
        for (at, group) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let digits = &text[16 * at..16 * (at + 1)];
            *group = u64::from_str_radix(digits, 16).map_err(|_| XetHashError)?.to_le_bytes();
        }
        Ok(XetHash(bytes))
    }
}
