//! Produces the bytes of a layer: literal bytes, ranges of source files, and tensors that are quantised while
//! they are read. Layers are read in order with bounded memory, from any offset. The same recipe over the
//! same source always gives the same bytes.

use std::io::{self, Read};
use std::sync::Arc;

use half::bf16;

use super::check::CheckedRun;
use crate::convert::{Rows, RowsReader, Segment};
use crate::quant::Quantisation;
use crate::quant::affine::{QuantiseError, Quantised, check_finite, quantise};
use crate::read_at::ReadAt;
use crate::source::{ArrayReader, FloatArray, Source};

/// The number of elements that are quantised at a time; a multiple of every group size.
const CHUNK_ELEMENTS: u64 = 1 << 17;

/// The recipe of a layer.
#[derive(Clone, Debug)]
pub struct Content {
    pieces: Arc<[Piece]>,
    /// Scales of untrusted files, to be checked while the layer is read.
    checked_runs: Arc<[CheckedRun]>,
}

/// A part of a layer that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerPart<'a> {
    Bytes(&'a [u8]),
    /// A range of a file of the source, in bytes.
    Range {
        path: &'a str,
        offset: u64,
        length: u64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    Range { path: Arc<str>, offset: u64, length: u64 },
    Quantised(QuantisedPiece),
    Rows(Rows),
}

impl From<Segment> for Piece {
    fn from(segment: Segment) -> Piece {
        match segment {
            Segment::Bytes(bytes) => Piece::Bytes(bytes),
            Segment::Range { path, offset, length } => Piece::Range { path, offset, length },
            Segment::Rows(rows) => Piece::Rows(rows),
        }
    }
}

/// A float tensor of a source file. It is written as codes, then biases if there are any, then scales, in the
/// order of their keys. An FP8 tensor is decoded to BF16, and written so if it is not to be quantised.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct QuantisedPiece {
    pub(super) name: String,
    pub(super) array: FloatArray,
    pub(super) elements: u64,
    pub(super) to: Option<Quantisation>,
}

impl QuantisedPiece {
    fn len(&self) -> u64 {
        let width = self.array.value_dtype().bitsize() as u64 / 8;
        let Some(Quantisation { kind, group_size }) = self.to else { return self.elements * width };
        let groups = self.elements / u64::from(group_size);
        let companions = if kind.is_affine() { 2 * groups * width } else { groups };
        self.elements * u64::from(kind.bits()) / 8 + companions
    }
}

impl Piece {
    pub(super) fn len(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Range { length, .. } => *length,
            Piece::Quantised(piece) => piece.len(),
            Piece::Rows(rows) => rows.len(),
        }
    }
}

impl Content {
    pub(super) fn new(pieces: Vec<Piece>) -> Content {
        Content { pieces: pieces.into(), checked_runs: Arc::default() }
    }

    pub(super) fn with_checks(self, watched: Arc<[CheckedRun]>) -> Content {
        Content { checked_runs: watched, ..self }
    }

    pub(super) fn bytes(bytes: Vec<u8>) -> Content {
        Content::new(vec![Piece::Bytes(bytes)])
    }

    pub(super) fn file(path: &str, length: u64) -> Content {
        Content::new(vec![Piece::Range { path: path.into(), offset: 0, length }])
    }

    /// Returns the file that this layer may be a copy of: the layer is one range that begins at the file's
    /// start.
    pub fn whole_file(&self) -> Option<&str> {
        match &*self.pieces {
            [Piece::Range { path, offset: 0, .. }] => Some(path),
            _ => None,
        }
    }

    /// The parts of the layer in their order. `None` if some of its bytes are computed.
    pub fn parts(&self) -> Option<Vec<LayerPart<'_>>> {
        fn part(piece: &Piece) -> Option<LayerPart<'_>> {
            match piece {
                Piece::Bytes(bytes) => Some(LayerPart::Bytes(bytes)),
                Piece::Range { path, offset, length } => {
                    Some(LayerPart::Range { path, offset: *offset, length: *length })
                }
                Piece::Quantised(_) | Piece::Rows(_) => None,
            }
        }
        self.pieces.iter().map(part).collect()
    }

    pub(super) fn size(&self) -> u64 {
        self.pieces.iter().map(Piece::len).sum()
    }

    /// Whether bytes are computed at a higher cost than reading them, from any offset.
    pub(super) fn is_encoded(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Rows(_)))
    }

    /// Whether producing the bytes costs more than reading them.
    pub(super) fn is_made(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Rows(_) | Piece::Quantised(_)))
    }

    pub(super) fn is_watched(&self) -> bool {
        !self.checked_runs.is_empty()
    }

    pub(super) fn checked_runs(&self) -> Arc<[CheckedRun]> {
        Arc::clone(&self.checked_runs)
    }

    /// Returns a reader of the bytes `from..to`.
    pub(super) fn reader(&self, source: &Arc<dyn Source>, from: u64, to: u64) -> LayerReader {
        LayerReader {
            pieces: Arc::clone(&self.pieces),
            next: 0,
            current: Current::None,
            skip: from,
            left: to.saturating_sub(from),
            source: Arc::clone(source),
        }
    }
}

/// Reads a layer from start to end.
pub struct LayerReader {
    pieces: Arc<[Piece]>,
    /// The piece after the current one.
    next: usize,
    current: Current,
    /// Bytes still to be skipped before the first byte of the range.
    skip: u64,
    /// Bytes still to be returned.
    left: u64,
    source: Arc<dyn Source>,
}

enum Current {
    None,
    Bytes { piece: usize, at: usize },
    Range { file: Box<dyn ReadAt>, at: u64, end: u64 },
    Quantised(Box<Quantiser>),
    Rows(Box<RowsReader>),
}

impl Read for LayerReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..most];
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let read = match &mut self.current {
                Current::None => 0,
                Current::Bytes { piece, at } => {
                    let Piece::Bytes(bytes) = &self.pieces[*piece] else {
                        unreachable!("set from a Bytes piece")
                    };
                    let n = buf.len().min(bytes.len() - *at);
                    buf[..n].copy_from_slice(&bytes[*at..*at + n]);
                    *at += n;
                    n
                }
                Current::Range { file, at, end } => {
                    let n = (buf.len() as u64).min(*end - *at) as usize;
                    file.read_at(*at, &mut buf[..n])?;
                    *at += n as u64;
                    n
                }
                Current::Quantised(quantiser) => quantiser.read(buf)?,
                Current::Rows(rows) => rows.read(buf)?,
            };
            if read > 0 {
                self.left -= read as u64;
                return Ok(read);
            }
            if self.next == self.pieces.len() {
                self.current = Current::None;
                return Ok(0);
            }
            self.advance()?;
        }
    }
}

impl LayerReader {
    fn advance(&mut self) -> io::Result<()> {
        let (number, piece) = (self.next, &self.pieces[self.next]);
        let skip = self.skip.min(piece.len());
        self.skip -= skip;
        self.current = if skip == piece.len() {
            Current::None
        } else {
            match piece {
                Piece::Bytes(_) => Current::Bytes { piece: number, at: skip as usize },
                Piece::Range { path, offset, length } => {
                    let file = self.source.open(path)?;
                    Current::Range { file, at: offset + skip, end: offset + length }
                }
                Piece::Quantised(piece) => {
                    let mut quantiser = Quantiser::new(piece.array.open(&*self.source)?, piece.clone());
                    io::copy(&mut (&mut quantiser).take(skip), &mut io::sink())?;
                    Current::Quantised(Box::new(quantiser))
                }
                Piece::Rows(rows) => {
                    let end = skip.saturating_add(self.left).min(rows.len());
                    Current::Rows(Box::new(rows.reader(&self.source, skip, end)))
                }
            }
        };
        self.next += 1;
        Ok(())
    }
}

/// Quantises a tensor as it is read: codes are returned chunk by chunk; scales and biases are collected until
/// all codes are done.
struct Quantiser {
    array: ArrayReader,
    piece: QuantisedPiece,
    /// The number of elements read so far.
    done: u64,
    values: Vec<f32>,
    parts: Quantised,
    /// How much of `ready` has been returned.
    at: usize,
    ready: Ready,
}

#[derive(Clone, Copy)]
enum Ready {
    Codes,
    Biases,
    Scales,
}

impl Quantiser {
    fn new(array: ArrayReader, piece: QuantisedPiece) -> Quantiser {
        Quantiser {
            array,
            piece,
            done: 0,
            values: Vec::new(),
            parts: Quantised::default(),
            at: 0,
            ready: Ready::Codes,
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let QuantisedPiece { name, array, elements, to } = &self.piece;
        let count = CHUNK_ELEMENTS.min(elements - self.done);
        self.values.resize(count as usize, 0.0);
        self.array.read(self.done, &mut self.values)?;
        if array.scales.is_some() {
            self.values.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        self.parts.codes.clear();
        let made = match to {
            Some(Quantisation { kind, group_size }) => {
                quantise(*kind, *group_size as usize, array.value_dtype(), &self.values, &mut self.parts)
            }
            None => check_finite(&self.values).map_err(QuantiseError::from).map(|()| {
                self.parts.codes.extend(self.values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()));
            }),
        };
        made.map_err(|error| {
            let message = error.message_at(self.done);
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("tensor `{name}` of `{}`: {message}", array.path),
            )
        })?;
        self.done += count;
        self.at = 0;
        Ok(())
    }
}

impl Read for Quantiser {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let bytes = match self.ready {
                Ready::Codes => &self.parts.codes,
                Ready::Biases => &self.parts.biases,
                Ready::Scales => &self.parts.scales,
            };
            let n = buf.len().min(bytes.len() - self.at);
            if n > 0 {
                buf[..n].copy_from_slice(&bytes[self.at..self.at + n]);
                self.at += n;
                return Ok(n);
            }
            match self.ready {
                Ready::Codes if self.done < self.piece.elements => self.fill()?,
                Ready::Codes => (self.ready, self.at) = (Ready::Biases, 0),
                Ready::Biases => (self.ready, self.at) = (Ready::Scales, 0),
                Ready::Scales => return Ok(0),
            }
        }
    }
}
