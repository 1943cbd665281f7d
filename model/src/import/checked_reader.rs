//! Checks the runs of a layer while the layer is read.

use std::io::{self, Read};
use std::sync::Arc;

use super::check::CheckedRun;
use super::layer::LayerReader;

/// Returns a layer's bytes unchanged. Fails at the first invalid scale or code; the error names its tensor.
pub struct CheckedReader {
    inner: LayerReader,
    /// In the order of their bytes.
    watched: Arc<[CheckedRun]>,
    /// The run that is being checked, or the next one.
    next: usize,
    /// The number of bytes read so far.
    at: u64,
    /// The start of a block or number whose end has not been read yet.
    partial: Vec<u8>,
}

impl CheckedReader {
    pub(super) fn new(inner: LayerReader, watched: Arc<[CheckedRun]>) -> CheckedReader {
        CheckedReader { inner, watched, next: 0, at: 0, partial: Vec::new() }
    }

    fn check_bytes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(watched) = self.watched.get(self.next) {
            // 1. Skip the bytes in front of the run.
            let before = watched.offset.saturating_sub(self.at).min(bytes.len() as u64);
            let (_, rest) = bytes.split_at(before as usize);
            self.at += before;
            if rest.is_empty() {
                return Ok(());
            }
            // 2. Check the bytes of the run: the rest of a started block, whole blocks, the start of another.
            let left = (watched.offset + watched.length).saturating_sub(self.at);
            let (mut own, rest) = rest.split_at(left.min(rest.len() as u64) as usize);
            let (size, first) = (watched.unit_bytes(), (self.at - watched.offset) as usize);
            self.at += own.len() as u64;
            let mut block = first / size;
            if !self.partial.is_empty() {
                let (end, more) = own.split_at((size - self.partial.len()).min(own.len()));
                self.partial.extend_from_slice(end);
                own = more;
                if self.partial.len() == size {
                    watched.check_values(block, &self.partial)?;
                    self.partial.clear();
                    block += 1;
                }
            }
            let (whole, end) = own.split_at(own.len() / size * size);
            watched.check_values(block, whole)?;
            self.partial.extend_from_slice(end);
            if self.at >= watched.offset + watched.length {
                self.next += 1;
                self.partial.clear();
            }
            bytes = rest;
        }
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl Read for CheckedReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.check_bytes(&buf[..read])?;
        Ok(read)
    }
}
