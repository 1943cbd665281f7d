//! Uploads of hf_xet 1.8.0, read and computed again, and hostile ones.

use std::io::Write;

use lz4_flex::frame::FrameEncoder;

use super::hash::XetHash;
use super::shard::{MAX_FILE_RECORDS, RECORD_BYTES, ShardError, ShardFile, ShardReader};
use super::xorb::{Chunk, ChunkIndex, ChunkRange, ChunkReader, MAX_CHUNKS, XorbError, XorbHasher};
use crate::digest::Digest;

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/fixtures/xet/", $name))
    };
}

fn hash_xorb(bytes: &[u8], piece_bytes: usize) -> Result<(XetHash, ChunkIndex), XorbError> {
    let mut hasher = XorbHasher::default();
    bytes.chunks(piece_bytes).try_for_each(|piece| hasher.push(piece))?;
    hasher.finish()
}

fn read_shard(bytes: &[u8], piece_bytes: usize) -> Result<Vec<ShardFile>, ShardError> {
    let mut reader = ShardReader::default();
    bytes.chunks(piece_bytes).try_for_each(|piece| reader.push(piece))?;
    reader.finish()
}

fn unpack(bytes: &[u8]) -> Vec<u8> {
    let (mut reader, mut content) = (ChunkReader::default(), Vec::new());
    let each = |chunk: Chunk| {
        content.extend(chunk.content);
        Ok(())
    };
    reader.push(bytes, each).unwrap();
    reader.finish().unwrap();
    content
}

fn chunk(scheme: u8, stored: &[u8], unpacked_bytes: u32) -> Vec<u8> {
    let [a, b, c, _] = (stored.len() as u32).to_le_bytes();
    let [x, y, z, _] = unpacked_bytes.to_le_bytes();
    [&[0, a, b, c, scheme, x, y, z], stored].concat()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A record of a shard: a hash and four numbers.
fn record(hash: [u8; 32], fields: [u32; 4]) -> Vec<u8> {
    [&hash[..], &fields.map(u32::to_le_bytes).concat()].concat()
}

fn shard(records: &[Vec<u8>]) -> Vec<u8> {
    [&fixture!("text.shard")[..RECORD_BYTES], &records.concat(), &record([0xff; 32], [0; 4])].concat()
}

const WITH_METADATA: u32 = 1 << 30;

#[test]
fn uploads_of_the_client_are_read() {
    let cases = [
        (&fixture!("text.xorb")[..], &fixture!("text.shard")[..]),
        (fixture!("floats.xorb"), fixture!("floats.shard")),
        (fixture!("random.xorb"), fixture!("random.shard")),
    ];
    for (xorb, shard) in cases {
        for piece_bytes in [1, 47, xorb.len()] {
            let (hash, index) = hash_xorb(xorb, piece_bytes).unwrap();
            let files = read_shard(shard, piece_bytes).unwrap();
            let [file] = &files[..] else { panic!("one file: {files:?}") };
            let [term] = file.terms[..] else { panic!("one term: {file:?}") };
            assert_eq!(term.xorb, hash);
            let range = index.range(term.first, term.end).unwrap();
            assert_eq!(
                range,
                ChunkRange { stored: 0..xorb.len() as u64, unpacked_bytes: term.unpacked_bytes.into() }
            );
            let content = unpack(xorb);
            assert_eq!(
                (content.len() as u64, Digest::sha256(&content)),
                (file.size_bytes(), file.sha256.clone())
            );
        }
    }
}

#[test]
fn the_tree_is_that_of_the_client() {
    // Its second part has the xorb's hash and a record for each chunk.
    let shard = fixture!("many.shard");
    let files = read_shard(shard, shard.len()).unwrap();
    let records: Vec<&[u8]> = shard.chunks(RECORD_BYTES).collect();
    let xorb = files[0].terms[0].xorb;
    assert_eq!(xorb.to_string(), "f01c701ff90e8b93829dafa57e43238d373db009ffc60a08b092a999738ad4a5");
    let hash = |record: &[u8]| XetHash::from_bytes(record[..32].try_into().unwrap());
    let at = records.iter().rposition(|record| hash(record) == xorb).unwrap();
    let chunks: Vec<(XetHash, u64)> = records[at + 1..records.len() - 1]
        .iter()
        .map(|record| (hash(record), u32::from_le_bytes(record[36..40].try_into().unwrap()).into()))
        .collect();
    assert!(chunks.len() > 27, "{} chunks", chunks.len());
    assert_eq!(XetHash::of_chunks(chunks), xorb);
}

#[test]
fn hashes_have_a_text() {
    let hash = XetHash::from_bytes(std::array::from_fn(|at| at as u8));
    let text = "07060504030201000f0e0d0c0b0a090817161514131211101f1e1d1c1b1a1918";
    assert_eq!((hash.to_string().as_str(), text.parse()), (text, Ok(hash)));
    for wrong in ["", &text[1..], &text.to_uppercase(), &format!("+{}", &text[1..]), &"\u{e9}".repeat(32)] {
        assert!(wrong.parse::<XetHash>().is_err(), "{wrong}");
    }
}

#[test]
fn chunks_are_ungrouped() {
    for len in 1..=9_u8 {
        let bytes: Vec<u8> = (0..len).collect();
        let grouped: Vec<u8> =
            (0..4).flat_map(|group| bytes.iter().copied().skip(group).step_by(4)).collect();
        assert_eq!(unpack(&chunk(2, &lz4(&grouped), len.into())), bytes);
    }
}

#[test]
fn ranges_of_chunks_are_found() {
    let xorb = [chunk(0, b"abc", 3), chunk(0, b"de", 2), chunk(0, b"f", 1)].concat();
    // Older clients append an index.
    let with_index = [&xorb[..], b"XETBLOB\x01 and more"].concat();
    let (hash, index) = hash_xorb(&with_index, 5).unwrap();
    assert_eq!(hash_xorb(&xorb, 5).unwrap(), (hash, index.clone()));
    assert_eq!(index.range(1, 3), Ok(ChunkRange { stored: 11..30, unpacked_bytes: 3 }));
    assert_eq!(ChunkIndex::from_bytes(&index.to_bytes()), Some(index.clone()));
    for (first, end) in [(0, 0), (2, 1), (0, 4), (3, 4), (u32::MAX, u32::MAX), (0, u32::MAX)] {
        assert_eq!(index.range(first, end), Err(XorbError::Range { first, end, count: 3 }));
    }
    for damaged in [&index.to_bytes()[1..], &[1; 16]] {
        assert_eq!(ChunkIndex::from_bytes(damaged), None);
    }
}

#[test]
fn invalid_xorbs_are_refused() {
    let large = vec![0; 128 << 10];
    let bomb = chunk(1, &lz4(&vec![0; 4 << 20]), 128 << 10);
    let cases = [
        (vec![], XorbError::Empty),
        (b"XETBLOB".to_vec(), XorbError::Truncated),
        (b"XETBLOB\x01".to_vec(), XorbError::Empty),
        (chunk(0, b"abc", 3)[..10].to_vec(), XorbError::Truncated),
        (chunk(3, b"abc", 3), XorbError::Scheme { scheme: 3 }),
        (chunk(0, b"", 0), XorbError::ChunkSize { bytes: 0 }),
        (chunk(1, b"abc", 0xff_ffff), XorbError::ChunkSize { bytes: 0xff_ffff }),
        (chunk(0, b"abc", 4), XorbError::Compression { expected: 4 }),
        (chunk(1, b"abc", 3), XorbError::Compression { expected: 3 }),
        (chunk(1, &lz4(b"abcd"), 3), XorbError::Compression { expected: 3 }),
        (chunk(1, &lz4(b"ab"), 3), XorbError::Compression { expected: 3 }),
        (bomb, XorbError::Compression { expected: 128 << 10 }),
        (chunk(0, b"a", 1).repeat(MAX_CHUNKS + 1), XorbError::TooManyChunks),
        (chunk(1, &lz4(&large), 128 << 10).repeat(513), XorbError::TooLarge),
    ];
    for (xorb, expected) in cases {
        assert_eq!(hash_xorb(&xorb, 1 << 16), Err(expected));
    }
}

#[test]
fn invalid_shards_are_refused() {
    let file = XetHash::from_bytes([7; 32]);
    let whole = fixture!("text.shard");
    let mut version = whole.to_vec();
    version[32] = 3;
    let term = |first, end| record([1; 32], [0, 5, first, end]);
    let cases = [
        (vec![], ShardError::Truncated),
        (whole[..whole.len() / 3].to_vec(), ShardError::Truncated),
        (vec![0; 480], ShardError::Tag),
        (version, ShardError::Version { version: 3 }),
        (shard(&[record([7; 32], [1, 0, 0, 0])]), ShardError::Flags { file, flags: 1 }),
        (shard(&[record([7; 32], [0, 0, 0, 0])]), ShardError::Sha256Missing { file }),
        // More terms than there are records.
        (
            shard(&[record([7; 32], [WITH_METADATA, u32::MAX, 0, 0])]),
            ShardError::Term { file, first: 0, end: 0 },
        ),
        (
            shard(&[record([7; 32], [WITH_METADATA, 1, 0, 0]), term(2, 2)]),
            ShardError::Term { file, first: 2, end: 2 },
        ),
        (
            shard(&[record([7; 32], [WITH_METADATA, u32::MAX, 0, 0]), term(0, 1).repeat(MAX_FILE_RECORDS)]),
            ShardError::TooManyRecords,
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(read_shard(&bytes, 1000), Err(expected));
    }
    let empty = shard(&[record([7; 32], [WITH_METADATA, 0, 0, 0]), record([9; 32], [0; 4])]);
    let files = read_shard(&empty, 1000).unwrap();
    assert_eq!((files.len(), files[0].size_bytes()), (1, 0));
    assert_eq!(read_shard(&shard(&[]), 1000), Ok(vec![]));
}
