//! Reads the header of a file whose header length is unknown.

use std::io;

use super::header::{Header, MAX_HEADER_BYTES};
use super::parse::HeaderError;
use crate::read_at::ReadAt;

/// The size of the first read: the whole header of a model without a vocabulary.
const FIRST_READ_BYTES: u64 = 64 * 1024;

/// Why a header could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("reading failed")]
    Read(#[source] io::Error),
}

impl Header {
    /// Reads and checks the header of a file. Its length is known only at its end, so the reads grow.
    pub fn read(file: &(impl ReadAt + ?Sized)) -> Result<Header, ReadError> {
        Header::read_up_to(file, MAX_HEADER_BYTES)
    }

    /// As [`Header::read`], for a header of at most `limit` bytes.
    pub fn read_up_to(file: &(impl ReadAt + ?Sized), limit: u64) -> Result<Header, ReadError> {
        let file_len = file.len();
        let limit = limit.min(MAX_HEADER_BYTES);
        let mut bytes = Vec::new();
        let mut wanted = FIRST_READ_BYTES.min(file_len);
        loop {
            let have = bytes.len();
            // At most the limit, so it fits a usize.
            bytes.resize(wanted as usize, 0);
            file.read_at(have as u64, &mut bytes[have..]).map_err(ReadError::Read)?;
            match Header::parse(&bytes, file_len) {
                Err(HeaderError::Incomplete { needed }) if needed > limit => {
                    return Err(HeaderError::TooLong { needed, limit }.into());
                }
                // Doubling bounds the total of all reads to twice the header, wherever it is cut.
                Err(HeaderError::Incomplete { needed }) => {
                    wanted = needed.max(wanted.saturating_mul(2)).min(limit).min(file_len);
                }
                done => return Ok(done?),
            }
        }
    }
}
