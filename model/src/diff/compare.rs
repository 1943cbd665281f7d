//! Compares two tensors: whether their bytes are equal, and how large the difference of their values is
//! relative to the values. Both are decoded a few rows at a time, so that memory stays bounded whatever their
//! size and format.

use std::io;

use super::change::Change;
use crate::quant::DecodeError;
use crate::read_at::ReadAt;
use crate::safetensors::Dtype;
use crate::tensor::{ByteRange, TensorInfo};

/// The number of elements of each side that are decoded at a time.
const CHUNK_ELEMENTS: u64 = 1 << 20;
/// The longest row that is decoded, in elements.
const MAX_ROW_ELEMENTS: u64 = 1 << 26;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// Both are stored as the same bytes.
    pub same_bytes: bool,
    /// The root of the sum of the squared differences, divided by that of this side's values. `None` if this
    /// side is all zeros and the other is not.
    pub relative_error: Option<f64>,
    /// The largest difference between two values.
    pub largest: f64,
    /// Values that are infinite or NaN on only one side; the other figures leave them out.
    pub not_finite: u64,
}

/// Why two tensors cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("the shapes differ: {here:?} and {there:?}")]
    Shapes { here: Vec<u64>, there: Vec<u64> },
    #[error("a row has {elements} elements, expected at most {MAX_ROW_ELEMENTS}")]
    Row { elements: u64 },
    #[error("the parts of the tensor cannot be split into rows")]
    Rows,
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("reading failed")]
    Read(#[source] io::Error),
}

/// The blobs that hold a tensor's bytes.
#[derive(Clone, Copy)]
pub struct Blobs<'a> {
    pub weight: &'a dyn ReadAt,
    /// The blob of the scales, for a tensor whose scales are in another blob.
    pub scales: Option<&'a dyn ReadAt>,
}

/// Compares two tensors. `change` is applied to each side's values first.
pub fn compare(
    (here, here_blobs): (&TensorInfo, Blobs<'_>),
    (there, there_blobs): (&TensorInfo, Blobs<'_>),
    change: (Change, Change),
) -> Result<Difference, CompareError> {
    if here.shape != there.shape {
        return Err(CompareError::Shapes { here: here.shape.clone(), there: there.shape.clone() });
    }
    let alike = (&here.dtype, here.quantisation) == (&there.dtype, there.quantisation)
        && change == (Change::None, Change::None)
        && here.parts.global_scale.is_some() == there.parts.global_scale.is_some()
        && scale_layout(here) == scale_layout(there);
    let mut sums = Sums { same_bytes: alike, ..Sums::default() };
    for (first, count) in steps(here, change)? {
        let (ours, theirs) = match count {
            Some(count) => {
                let rows = |tensor: &TensorInfo| tensor.rows(first, count).ok_or(CompareError::Rows);
                (rows(here)?, rows(there)?)
            }
            None => (here.clone(), there.clone()),
        };
        let (ours_bytes, theirs_bytes) = (read(&ours, here_blobs)?, read(&theirs, there_blobs)?);
        if alike && ours_bytes == theirs_bytes {
            // Equal values still count in the denominator of the relative error. Equal bytes that cannot be
            // decoded are no difference.
            if let Ok(values) = decode(&ours, &ours_bytes) {
                sums.add(&values, &values);
            }
            continue;
        }
        sums.same_bytes = false;
        let columns = here.shape.last().copied().unwrap_or(1);
        let values = |tensor: &TensorInfo, bytes: &[Vec<u8>], change| {
            Ok::<_, CompareError>(undo_change(decode(tensor, bytes)?, columns as usize, change))
        };
        sums.add(&values(&ours, &ours_bytes, change.0)?, &values(&theirs, &theirs_bytes, change.1)?);
    }
    Ok(sums.finish())
}

/// Returns the properties that decide how the bytes of scales are decoded.
fn scale_layout(tensor: &TensorInfo) -> Option<(Dtype, [u64; 2])> {
    tensor.scaling.as_ref().map(|scaling| (scaling.part.dtype, scaling.block))
}

/// Returns the first row and the row count of each step. The count is `None` for a tensor that is decoded
/// whole.
fn steps(tensor: &TensorInfo, change: (Change, Change)) -> Result<Vec<(u64, Option<u64>)>, CompareError> {
    let Some((columns, leading)) = tensor.shape.split_last() else { return Ok(vec![(0, None)]) };
    let rows = leading.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let rows = rows.ok_or(CompareError::Rows)?;
    if rows == 0 || *columns == 0 {
        return Ok(Vec::new());
    }
    let head = match change {
        (Change::ReorderHeads(head), _) | (_, Change::ReorderHeads(head)) => head.max(1),
        _ => 1,
    };
    let unit = columns.saturating_mul(head);
    if unit > MAX_ROW_ELEMENTS {
        return Err(CompareError::Row { elements: unit });
    }
    let step = (CHUNK_ELEMENTS / unit).max(1) * head;
    let starts = (0..rows).step_by(usize::try_from(step).map_err(|_| CompareError::Rows)?);
    Ok(starts.map(|first| (first, Some(step.min(rows - first)))).collect())
}

fn read(tensor: &TensorInfo, blobs: Blobs<'_>) -> Result<Vec<Vec<u8>>, CompareError> {
    let parts = tensor.parts.iter().count();
    let run = |(at, run): (usize, ByteRange<'_>)| {
        let blob = if at < parts { Some(blobs.weight) } else { blobs.scales };
        let blob = blob.ok_or(io::ErrorKind::NotFound)?;
        // Check the range before allocating memory: a damaged description can exceed the blob.
        let is_there = run.offset.checked_add(run.size_bytes).is_some_and(|end| end <= blob.len());
        let len = usize::try_from(run.size_bytes).ok().filter(|_| is_there);
        let mut bytes = vec![0; len.ok_or(io::ErrorKind::UnexpectedEof)?];
        blob.read_at(run.offset, &mut bytes)?;
        Ok(bytes)
    };
    let runs = tensor.runs().ok_or(CompareError::Rows)?;
    runs.into_iter().enumerate().map(run).collect::<io::Result<_>>().map_err(CompareError::Read)
}

fn decode(tensor: &TensorInfo, bytes: &[Vec<u8>]) -> Result<Vec<f32>, CompareError> {
    let parts: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    let values = tensor.decode_f32(&parts)?;
    // A row of blocks can have more values than the tensor has elements; such a tensor cannot be compared.
    match usize::try_from(tensor.elements()) {
        Ok(expected) if values.len() == expected => Ok(values),
        expected => {
            let expected = expected.unwrap_or(usize::MAX);
            Err(DecodeError::Length { part: "decoded values", found: values.len(), expected }.into())
        }
    }
}

/// Converts values back to the checkpoint's form.
fn undo_change(mut values: Vec<f32>, columns: usize, change: Change) -> Vec<f32> {
    match change {
        Change::None => values,
        Change::SubtractOne => {
            values.iter_mut().for_each(|value| *value -= 1.0);
            values
        }
        Change::ReorderHeads(head) => {
            let (head, columns) = (usize::try_from(head).unwrap_or(usize::MAX), columns.max(1));
            // A head without rows, or with more values than the tensor, permutes nothing.
            let size = head.checked_mul(columns).filter(|size| (1..=values.len()).contains(size));
            let Some(size) = size else { return values };
            let mut out = values.clone();
            for (from, to) in values.chunks_exact(size).zip(out.chunks_exact_mut(size)) {
                // Row 2i + j of the GGUF is row j * head/2 + i of the checkpoint.
                for (at, row) in from.chunks_exact(columns).enumerate() {
                    let home = (at % 2) * (head / 2) + at / 2;
                    to[home * columns..][..columns].copy_from_slice(row);
                }
            }
            out
        }
    }
}

#[derive(Default)]
struct Sums {
    same_bytes: bool,
    squares: f64,
    differences: f64,
    largest: f64,
    not_finite: u64,
}

impl Sums {
    fn add(&mut self, here: &[f32], there: &[f32]) {
        for (here, there) in here.iter().zip(there) {
            let (ours, theirs) = (f64::from(*here), f64::from(*there));
            if !ours.is_finite() || !theirs.is_finite() {
                let same = here == there || (here.is_nan() && there.is_nan());
                self.not_finite += u64::from(!same);
                continue;
            }
            let difference = ours - theirs;
            self.squares += ours * ours;
            self.differences += difference * difference;
            self.largest = self.largest.max(difference.abs());
        }
    }

    fn finish(self) -> Difference {
        let Sums { same_bytes, squares, differences, largest, not_finite } = self;
        let relative_error = match (differences == 0.0, squares == 0.0) {
            (true, _) => Some(0.0),
            (false, true) => None,
            (false, false) => Some((differences / squares).sqrt()),
        };
        Difference { same_bytes, relative_error, largest, not_finite }
    }
}
