//! Produces the bytes of a converted tensor: rows of float arrays are decoded, reordered and encoded. Any range
//! can be produced without the bytes before it, so that several threads can share one tensor. Memory is
//! bounded by a few rows.

use std::io::{self, Read};
use std::sync::Arc;

use crate::quant::ggml;
use crate::source::{ArrayReader, FloatArray, Source};

/// The number of elements that are encoded at a time; a longer row is encoded whole.
const CHUNK_ELEMENTS: u64 = 1 << 17;
/// The longest row, which is decoded and encoded in memory. Rows of models are below 2^20 elements.
pub(super) const MAX_ROW_ELEMENTS: u64 = 1 << 24;

/// The recipe of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    /// The tensor's name.
    pub(crate) name: String,
    /// The source of the values: one array, or the experts of a layer in order. All arrays have the same
    /// shape.
    pub(crate) arrays: Vec<FloatArray>,
    pub(crate) rows_each: u64,
    pub(crate) columns: u64,
    pub(crate) order: RowOrder,
    /// Added to every value: 1 for norms that a checkpoint stores as the difference from 1, and -1 in the other
    /// direction.
    pub(crate) add: f32,
    pub(crate) to: ggml::Type,
}

/// The mapping from rows of the result to rows of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    Same,
    /// The reverse of [`RowOrder::Pairs`]: row `h * head_dim / 2 + p` of each head is its source row `2p + h`.
    Halves {
        head_dim: u64,
    },
    /// Row `2p + h` of each head is its source row `h * head_dim / 2 + p`: converts rotated halves to rotated
    /// pairs.
    Pairs {
        head_dim: u64,
    },
}

impl RowOrder {
    fn source_row(self, row: u64) -> u64 {
        match self {
            RowOrder::Same => row,
            RowOrder::Pairs { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                head * head_dim + (within % 2) * (head_dim / 2) + within / 2
            }
            RowOrder::Halves { head_dim } => {
                let (head, within) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + within % half * 2 + within / half
            }
        }
    }
}

impl Rows {
    /// The size of an encoded row. The mix only chooses types whose blocks divide the row.
    fn row_bytes(&self) -> u64 {
        self.to.row_bytes(self.columns).expect("the type was chosen to divide the rows")
    }

    fn rows(&self) -> u64 {
        self.rows_each * self.arrays.len() as u64
    }

    pub(crate) fn len(&self) -> u64 {
        self.rows() * self.row_bytes()
    }

    /// Returns a reader of the bytes `from..to`.
    pub(crate) fn reader(&self, source: &Arc<dyn Source>, from: u64, to: u64) -> RowsReader {
        let row_bytes = self.row_bytes();
        RowsReader {
            row: from / row_bytes,
            end: to.div_ceil(row_bytes).min(self.rows()),
            skip_bytes: (from % row_bytes) as usize,
            rows: self.clone(),
            source: Arc::clone(source),
            open: None,
            values: Vec::new(),
            ready: Vec::new(),
            at: 0,
        }
    }
}

/// Encodes rows as they are read.
pub(crate) struct RowsReader {
    rows: Rows,
    source: Arc<dyn Source>,
    /// The array that is being read.
    open: Option<(usize, ArrayReader)>,
    /// The next row to encode, and the one to stop at.
    row: u64,
    end: u64,
    /// Leading bytes of the first row that are outside the requested range.
    skip_bytes: usize,
    values: Vec<f32>,
    ready: Vec<u8>,
    at: usize,
}

impl RowsReader {
    fn fill(&mut self) -> io::Result<()> {
        let rows = &self.rows;
        let number = (self.row / rows.rows_each) as usize;
        let array = &rows.arrays[number];
        let first = self.row % rows.rows_each;
        let left = (rows.rows_each - first).min(self.end - self.row);
        let count = (CHUNK_ELEMENTS / rows.columns).clamp(1, left);

        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            self.open = Some((number, array.open(&*self.source)?));
        }
        let Some((_, reader)) = &mut self.open else { unreachable!("opened above") };
        self.values.resize((count * rows.columns) as usize, 0.0);
        match rows.order {
            RowOrder::Same => reader.read(first * rows.columns, &mut self.values)?,
            order => {
                for (row, values) in (first..).zip(self.values.chunks_exact_mut(rows.columns as usize)) {
                    reader.read(order.source_row(row) * rows.columns, values)?;
                }
            }
        }
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
        if rows.add != 0.0 {
            self.values.iter_mut().for_each(|value| *value += rows.add);
        }
        if rows.to.block_elements() > 1
            && let Some(at) = self.values.iter().position(|value| !value.is_finite())
        {
            let element = self.row * rows.columns + at as u64;
            return Err(invalid(format!(
                "tensor `{}` of `{}`: element {element} is {}, expected a finite number",
                rows.name, array.path, self.values[at]
            )));
        }
        self.ready.resize((count * rows.row_bytes()) as usize, 0);
        ggml::encode(rows.to, &self.values, &mut self.ready)
            .map_err(|error| invalid(format!("tensor `{}`: {error}", rows.name)))?;
        self.row += count;
        self.at = std::mem::take(&mut self.skip_bytes);
        Ok(())
    }
}

impl Read for RowsReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.ready.len() {
            if self.row == self.end {
                return Ok(0);
            }
            self.fill()?;
        }
        let n = buf.len().min(self.ready.len() - self.at);
        buf[..n].copy_from_slice(&self.ready[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}
