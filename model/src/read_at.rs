//! Reading at an offset: the seam between what parses files and what holds them.
//! The CLI implements it over files, the registry over stored blobs, tests over bytes.

use std::io;

/// Bytes that can be read at any offset.
pub trait ReadAt: Send + Sync {
    /// How many bytes there are.
    fn len(&self) -> u64;

    /// Fills `buf` from `offset` on, or fails; bytes past the end are `UnexpectedEof`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(buf.len())?));
        let bytes = range.and_then(|range| self.get(range)).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        ReadAt::len(self.as_slice())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_inside() {
        let bytes = b"abcdef".to_vec();
        let mut buf = [0; 3];
        bytes.read_at(3, &mut buf).unwrap();
        assert_eq!(&buf, b"def");
        for offset in [4, 6, 7, u64::MAX - 1, u64::MAX] {
            assert_eq!(bytes.read_at(offset, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
