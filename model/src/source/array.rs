//! Float values in the imported files: stored floats, or FP8 or int8 codes whose scales may be in another
//! file. Quantisation and conversion read their source through this module.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::files::Source;
use crate::quant::scaled::Grid;
use crate::quant::{float, ggml};
use crate::read_at::ReadAt;
use crate::safetensors::Dtype;

/// An array of floats in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FloatArray {
    pub(crate) path: Arc<str>,
    pub(crate) offset: u64,
    /// BF16, F16 or F32, F8_E4M3 or I8 under scales, or U8 for blocks.
    pub(crate) dtype: Dtype,
    pub(crate) scales: Option<Scales>,
    /// The type of a GGUF tensor of blocks, whose `dtype` is that of its bytes.
    pub(crate) blocks: Option<ggml::Type>,
}

/// The scales of an array of codes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scales {
    /// The tensor to which the scales belong.
    pub(crate) tensor: Arc<str>,
    pub(crate) path: Arc<str>,
    pub(crate) offset: u64,
    pub(crate) dtype: Dtype,
    pub(crate) grid: Grid,
}

impl FloatArray {
    /// The type that the values have in a float checkpoint.
    pub(crate) fn value_dtype(&self) -> Dtype {
        if self.scales.is_some() { Dtype::BF16 } else { self.dtype }
    }

    pub(crate) fn open(&self, source: &dyn Source) -> io::Result<ArrayReader> {
        let file = source.open(&self.path)?;
        let scales = match &self.scales {
            Some(scales) => Some((scales.clone(), source.open(&scales.path)?)),
            None => None,
        };
        let FloatArray { offset, dtype, blocks, .. } = *self;
        let (stored, scale_bytes, factors) = Default::default();
        Ok(ArrayReader { file, offset, dtype, scales, blocks, stored, scale_bytes, factors })
    }
}

/// Reads runs of an array's values. Memory is bounded by the longest run.
pub(crate) struct ArrayReader {
    file: Box<dyn ReadAt>,
    offset: u64,
    dtype: Dtype,
    scales: Option<(Scales, Box<dyn ReadAt>)>,
    blocks: Option<ggml::Type>,
    stored: Vec<u8>,
    scale_bytes: Vec<u8>,
    factors: Vec<f32>,
}

impl ArrayReader {
    /// Reads the elements from `first` on, one for each place of `out`. A scaled value that is infinite or
    /// NaN is an error that names its tensor. Of blocks, whole ones are read.
    pub(crate) fn read(&mut self, first: u64, out: &mut [f32]) -> io::Result<()> {
        let count = out.len() as u64;
        if let Some(ty) = self.blocks {
            let bytes = |elements: u64| {
                let partial =
                    || io::Error::other(format!("{elements} elements are not whole blocks of {ty}"));
                ty.row_bytes(elements).ok_or_else(partial)
            };
            self.stored.resize(bytes(count)? as usize, 0);
            self.file.read_at(self.offset + bytes(first)?, &mut self.stored)?;
            return ggml::decode_f32_into(ty, &self.stored, out).map_err(io::Error::other);
        }
        fetch(&*self.file, self.offset, self.dtype, first..first + count, &mut self.stored)?;
        let Some((scales, file)) = &self.scales else {
            return float::decode_f32_into(self.dtype, &self.stored, out).map_err(io::Error::other);
        };
        let some = scales.grid.scales(first, count);
        self.factors.resize((some.end - some.start) as usize, 0.0);
        fetch(&**file, scales.offset, scales.dtype, some, &mut self.scale_bytes)?;
        float::decode_f32_into(scales.dtype, &self.scale_bytes, &mut self.factors)
            .map_err(io::Error::other)?;
        scales.grid.decode(self.dtype, first, &self.stored, &self.factors, out).map_err(|error| {
            let message = format!("tensor `{}` (scales in `{}`): {error}", scales.tensor, scales.path);
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }
}

/// Reads some elements of an array whose elements take whole bytes.
fn fetch(
    file: &dyn ReadAt,
    offset: u64,
    dtype: Dtype,
    elements: Range<u64>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let width = (dtype.bitsize() / 8) as u64;
    out.resize(((elements.end - elements.start) * width) as usize, 0);
    file.read_at(offset + elements.start * width, out)
}
