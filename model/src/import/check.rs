//! A look at the blocks of a GGUF while its bytes pass by on their way in: a scale that is no number spoils every value that it
//! touches, and who runs the model would not learn why.

use std::io::{self, Read};
use std::sync::Arc;

use super::layer::LayerReader;
use crate::gguf::Header;
use crate::quant::ggml::{InvalidBlocks, Type, validate};

/// A tensor of blocks, and where in its layer it lies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Blocks {
    name: String,
    ty: Type,
    offset: u64,
    length: u64,
}

/// The tensors of a file that are made of blocks, in the order of their bytes. Plain floats are a matter of who trained them.
pub(super) fn blocks(header: &Header) -> Arc<[Blocks]> {
    let of = |entry: &crate::gguf::TensorEntry| {
        let length = entry.size_bytes().filter(|_| entry.ty.block_elements() > 1)?;
        let offset = header.data_start.checked_add(entry.offset)?;
        Some(Blocks { name: entry.name.clone(), ty: entry.ty, offset, length })
    };
    let mut all: Vec<Blocks> = header.tensors.iter().filter_map(of).collect();
    all.sort_by_key(|blocks| blocks.offset);
    all.into()
}

/// Gives a layer's bytes on as they are, or fails at the first block that should not be used, with its tensor's name.
pub struct CheckedReader {
    inner: LayerReader,
    blocks: Arc<[Blocks]>,
    /// The tensor that is being looked at, or comes next.
    next: usize,
    /// How far the layer has been read.
    at: u64,
    /// The start of a block whose end has not come yet.
    begun: Vec<u8>,
}

impl CheckedReader {
    pub(super) fn new(inner: LayerReader, blocks: Arc<[Blocks]>) -> CheckedReader {
        CheckedReader { inner, blocks, next: 0, at: 0, begun: Vec::new() }
    }

    fn look(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(blocks) = self.blocks.get(self.next) {
            // 1. What lies before the tensor.
            let before = blocks.offset.saturating_sub(self.at).min(bytes.len() as u64);
            let (_, rest) = bytes.split_at(before as usize);
            self.at += before;
            if rest.is_empty() {
                return Ok(());
            }
            // 2. What is there of it: the rest of a block that had begun, whole blocks, the start of another.
            let left = (blocks.offset + blocks.length).saturating_sub(self.at);
            let (mut own, rest) = rest.split_at(left.min(rest.len() as u64) as usize);
            let (size, first) = (blocks.ty.block_bytes() as usize, (self.at - blocks.offset) as usize);
            self.at += own.len() as u64;
            let mut block = first / size;
            if !self.begun.is_empty() {
                let (end, more) = own.split_at((size - self.begun.len()).min(own.len()));
                self.begun.extend_from_slice(end);
                own = more;
                if self.begun.len() == size {
                    usable(blocks, block, &self.begun)?;
                    self.begun.clear();
                    block += 1;
                }
            }
            let (whole, end) = own.split_at(own.len() / size * size);
            usable(blocks, block, whole)?;
            self.begun.extend_from_slice(end);
            if self.at >= blocks.offset + blocks.length {
                self.next += 1;
                self.begun.clear();
            }
            bytes = rest;
        }
        self.at += bytes.len() as u64;
        Ok(())
    }
}

fn usable(blocks: &Blocks, first: usize, bytes: &[u8]) -> io::Result<()> {
    let Err(InvalidBlocks::Scale { block, value }) = validate(blocks.ty, bytes) else { return Ok(()) };
    let (name, ty, block) = (&blocks.name, blocks.ty, first + block);
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("tensor `{name}`: block {block} of {ty} has a scale of {value}, expected a finite number"),
    ))
}

impl Read for CheckedReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.look(&buf[..read])?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::gguf::{Header, Metadata, NewTensor};
    use crate::import::tests::Folder;
    use crate::import::{Options, Source, plan};

    /// A file with 3 tensors of 64 elements, of which the second is bad at one byte of its blocks.
    fn file(ty: Type, bad: Option<usize>) -> Vec<u8> {
        let tensor = |name: &str, ty| NewTensor { name: name.to_owned(), dims: vec![64, 4], ty };
        let tensors = [tensor("a", Type::F32), tensor("b", ty), tensor("c", Type::Q4_0)];
        let header = Header::new(Metadata::new(), tensors).unwrap();
        let mut bytes = header.to_bytes();
        bytes.resize(header.file_len() as usize, 0);
        // The floats may be what they like.
        let start = header.data_start as usize;
        bytes[start..start + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        if let Some(at) = bad {
            let at = start + header.tensors[1].offset as usize + at;
            bytes[at..at + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
        }
        bytes
    }

    fn read(bytes: Vec<u8>, step: usize) -> io::Result<Vec<u8>> {
        let source: Arc<dyn Source> = Arc::new(Folder(BTreeMap::from([("m.gguf".to_owned(), bytes)])));
        let plan = plan(&*source, &Options::default()).unwrap();
        let mut reader = plan.layers[0].checked_reader(&source);
        let (mut all, mut piece) = (Vec::new(), vec![0; step]);
        loop {
            match reader.read(&mut piece)? {
                0 => return Ok(all),
                read => all.extend_from_slice(&piece[..read]),
            }
        }
    }

    #[test]
    fn bad_scales_are_found_however_the_bytes_come() {
        for step in [1, 7, 34, 1000, 1 << 20] {
            let whole = file(Type::Q8_0, None);
            assert_eq!(read(whole.clone(), step).unwrap(), whole);
            for block in [0, 1, 7] {
                let error = read(file(Type::Q8_0, Some(34 * block)), step).unwrap_err().to_string();
                let expect = format!("tensor `b`: block {block} of Q8_0 has a scale of inf");
                assert!(error.contains(&expect), "{step}: {error}");
            }
            // No scale lies there.
            assert!(read(file(Type::Q8_0, Some(34 * 3 + 10)), step).is_ok());
        }
    }
}
