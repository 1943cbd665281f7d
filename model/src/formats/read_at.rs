//! Reading at an offset: the trait between the parsers and the storage of bytes. The CLI implements it over
//! files, the registry over stored blobs, tests over bytes.

use std::io;

/// Bytes that can be read at any offset.
pub trait ReadAt: Send + Sync {
    /// The number of bytes.
    fn len(&self) -> u64;

    /// Fills `buf` from `offset` on. Reading past the end fails with `UnexpectedEof`.
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

/// A range of a longer source, as a source of its own.
pub struct Window<'a> {
    whole: &'a dyn ReadAt,
    offset: u64,
    len: u64,
}

impl<'a> Window<'a> {
    /// Creates a window, cut off at the end of the source.
    pub fn new(whole: &'a dyn ReadAt, offset: u64, len: u64) -> Window<'a> {
        Window { whole, offset, len: len.min(whole.len().saturating_sub(offset)) }
    }
}

impl ReadAt for Window<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.len);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.whole.read_at(self.offset + offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_past_the_end_fail() {
        let bytes = b"abcdef".to_vec();
        let mut buf = [0; 3];
        bytes.read_at(3, &mut buf).unwrap();
        assert_eq!(&buf, b"def");
        for offset in [4, 6, 7, u64::MAX - 1, u64::MAX] {
            assert_eq!(bytes.read_at(offset, &mut buf).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn window_reads_past_its_end_fail() {
        let bytes = b"abcdef".to_vec();
        let window = Window::new(&bytes, 2, 3);
        let mut buf = [0; 3];
        window.read_at(0, &mut buf).unwrap();
        assert_eq!((&buf, window.len()), (b"cde", 3));
        assert!(window.read_at(1, &mut buf).is_err() && window.read_at(u64::MAX, &mut buf).is_err());
        assert_eq!((Window::new(&bytes, 4, 9).len(), Window::new(&bytes, 9, 1).len()), (2, 0));
    }
}
