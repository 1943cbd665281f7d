//! Walks the protobuf fields of a file through a window of bounded size.

use super::error::OnnxError;
use crate::read_at::ReadAt;

/// The most fields and the most reads of a file, so that a file of only tags has a bounded cost.
const MAX_FIELDS: u64 = 8_000_000;
const MAX_READS: u64 = 250_000;
/// The longest name, in bytes, and the most bytes of all names.
const MAX_TEXT: u64 = 4096;
const MAX_TEXTS: u64 = 128 << 20;
/// The size of one read.
const WINDOW_BYTES: u64 = 64 * 1024;
/// The longest varint, in bytes.
const VARINT_BYTES: u64 = 10;
/// The largest number of a field. Other parsers cut larger ones, and so would see another field.
const MAX_NUMBER: u64 = (1 << 29) - 1;

/// A field of a message: its number, and its value or byte range.
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) value: Wire,
}

#[derive(Clone, Copy)]
pub(super) enum Wire {
    Varint(u64),
    Bytes {
        start: u64,
        end: u64,
    },
    /// Four or eight bytes.
    Fixed,
}

pub(super) struct FieldReader<'a> {
    file: &'a dyn ReadAt,
    /// The offset of the window in the file.
    start: u64,
    window: Vec<u8>,
    fields: u64,
    reads: u64,
    texts: u64,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(file: &'a dyn ReadAt) -> Self {
        FieldReader { file, start: 0, window: Vec::new(), fields: 0, reads: 0, texts: 0 }
    }

    /// Returns some bytes, at most as many as a window has.
    pub(super) fn bytes(&mut self, at: u64, length: u64) -> Result<&[u8], OnnxError> {
        let end = self.start + self.window.len() as u64;
        if at < self.start || at + length > end {
            self.reads += 1;
            if self.reads > MAX_READS {
                return Err(OnnxError::LimitExceeded { what: "reads" });
            }
            self.start = at;
            self.window.resize(WINDOW_BYTES.min(self.file.len().saturating_sub(at)) as usize, 0);
            self.file.read_at(at, &mut self.window).map_err(OnnxError::Read)?;
        }
        let from = (at - self.start) as usize;
        self.window.get(from..from + length as usize).ok_or(OnnxError::Damaged { at })
    }

    pub(super) fn varint(&mut self, at: &mut u64, end: u64) -> Result<u64, OnnxError> {
        let damaged = OnnxError::Damaged { at: *at };
        let bytes = self.bytes(*at, VARINT_BYTES.min(end.saturating_sub(*at)))?;
        let mut value = 0u64;
        for (nth, byte) in bytes.iter().enumerate() {
            // The tenth byte has one bit left.
            if nth == 9 && *byte > 1 {
                return Err(damaged);
            }
            value |= u64::from(byte & 0x7f) << (7 * nth);
            if byte & 0x80 == 0 {
                *at += nth as u64 + 1;
                return Ok(value);
            }
        }
        Err(damaged)
    }

    /// Reads the field at `at`, in a message that ends at `end`, and moves `at` behind it.
    pub(super) fn field(&mut self, at: &mut u64, end: u64) -> Result<Field, OnnxError> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(OnnxError::LimitExceeded { what: "fields" });
        }
        let start = *at;
        let tag = self.varint(at, end)?;
        let damaged = || OnnxError::Damaged { at: start };
        let fixed = |at: u64, length: u64| at.checked_add(length).filter(|at| *at <= end).ok_or_else(damaged);
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint(at, end)?),
            1 => {
                *at = fixed(*at, 8)?;
                Wire::Fixed
            }
            2 => {
                let length = self.varint(at, end)?;
                let start = *at;
                *at = fixed(start, length)?;
                Wire::Bytes { start, end: *at }
            }
            5 => {
                *at = fixed(*at, 4)?;
                Wire::Fixed
            }
            _ => return Err(damaged()),
        };
        match tag >> 3 {
            1..=MAX_NUMBER => Ok(Field { number: tag >> 3, value }),
            _ => Err(damaged()),
        }
    }

    pub(super) fn text(&mut self, start: u64, end: u64) -> Result<String, OnnxError> {
        self.texts = self.texts.saturating_add(end - start);
        if end - start > MAX_TEXT || self.texts > MAX_TEXTS {
            return Err(OnnxError::LimitExceeded { what: "text" });
        }
        let bytes = self.bytes(start, end - start)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| OnnxError::Damaged { at: start })
    }
}
