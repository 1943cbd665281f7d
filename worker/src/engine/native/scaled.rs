//! Weights of one-byte codes, FP8 or int8, whose scales are a separate tensor: one scale for the tensor, one
//! a row, or one for each block of rows and columns. The codes stay mapped. The scales are copied, each row
//! with its own, so that rows can be divided among threads and projections.

use bytes::Bytes;
use lode_kernels::{ByteCode, Dtype, Weight};
use lode_model::quant::float;
use lode_model::quant::scaled::{Grid, allows_scale};
use lode_model::tensor::{Tensor, scaled};

use super::tensors::{Entry, MappedTensors, part};
use crate::engine::LoadError;

/// Kernels read this many codes at a time, which have one scale.
const RUN: u64 = 32;

impl MappedTensors {
    /// Returns rows from `first` on as a weight, if the tensor has codes that need scales.
    pub(super) fn scaled(&self, entry: &Entry, first: u64, rows: u64) -> Result<Option<Weight>, LoadError> {
        let Entry { file, tensor } = entry;
        let stored = &tensor.parts.weight;
        let code = ByteCode::of(stored.dtype).filter(|_| tensor.quantisation.is_none());
        let Some(code) = code.filter(|_| scaled::is_weight(&tensor.name, stored.dtype)) else {
            return Ok(None);
        };
        let refused = |reason: String| LoadError::TensorData { name: tensor.name.clone(), reason };
        let names = scaled::names(&tensor.name);
        let (name, scales) = match names.each_ref().map(|name| self.tensors.get(name)) {
            [Some(entry), None] => (&names[0], entry),
            [None, Some(entry)] => (&names[1], entry),
            [None, None] => {
                let [first, second] = &names;
                return Err(refused(format!("its scales are missing: neither `{first}` nor `{second}`")));
            }
            [Some(_), Some(_)] => {
                return Err(refused(format!(
                    "it has two tensors of scales: `{}` and `{}`",
                    names[0], names[1]
                )));
            }
        };
        self.check_zero_points(tensor)?;
        let block = self.scale_block.as_ref().map_err(|error| refused(error.to_string()))?;
        let scale_shape = &scales.tensor.shape;
        let grid = Grid::of(&tensor.shape, scale_shape, *block).ok_or_else(|| {
            let [down, across] = block;
            refused(format!(
                "its shape {:?} does not go with scales `{name}` of {scale_shape:?}: expected one, one a row, or one for \
                 each block of {down} by {across}",
                tensor.shape
            ))
        })?;
        let cols = tensor.shape.last().copied().unwrap_or(1);
        let group = grid.block()[1].min(cols);
        if !cols.is_multiple_of(RUN) || !group.is_multiple_of(RUN) {
            let reason = format!(
                "it has rows of {cols} codes and a scale for each {group} of them, expected multiples of {RUN}"
            );
            return Err(refused(reason));
        }
        let factors = self.scales_of(&grid, name, scales, first * cols, rows * cols)?;
        let by_row = grid.scales_by_row(first, rows, &factors);
        let by_row = by_row.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        let codes = stored.offset.checked_add(first * cols);
        let codes = codes.and_then(|offset| part(&self.files[*file].1, offset, rows * cols));
        let codes = codes.ok_or_else(|| refused("its data is beyond the end of the file".to_owned()))?;
        let size = |n: u64| usize::try_from(n).map_err(|_| refused("its shape is too large".to_owned()));
        let (dtype, shape) = (Dtype::ByteCodes { code, group: size(group)? }, (size(rows)?, size(cols)?));
        let weight = Weight::new(dtype, shape, codes, Bytes::from(by_row), Bytes::new());
        weight.map(Some).map_err(|error| refused(error.to_string()))
    }

    /// Decodes the scales of some elements.
    fn scales_of(
        &self,
        grid: &Grid,
        name: &str,
        scales: &Entry,
        first: u64,
        count: u64,
    ) -> Result<Vec<f32>, LoadError> {
        let refused = |reason: String| LoadError::TensorData { name: name.to_owned(), reason };
        let stored = &scales.tensor.parts.weight;
        if scales.tensor.quantisation.is_some() || !allows_scale(stored.dtype) {
            return Err(refused(format!(
                "its scales are {}, expected F32, BF16, F16 or F8_E8M0",
                scales.tensor.dtype
            )));
        }
        let (some, width) = (grid.scales(first, count), stored.dtype.bitsize() as u64 / 8);
        let offset = stored.offset.checked_add(some.start * width);
        let bytes = offset
            .and_then(|offset| part(&self.files[scales.file].1, offset, (some.end - some.start) * width))
            .ok_or_else(|| refused("its data is beyond the end of the file".to_owned()))?;
        let mut factors = vec![0.0; (some.end - some.start) as usize];
        float::decode_f32_into(stored.dtype, &bytes, &mut factors)
            .map_err(|error| refused(error.to_string()))?;
        match factors.iter().position(|factor| !factor.is_finite() || *factor < 0.0) {
            None => Ok(factors),
            Some(at) => {
                let (index, value) = (some.start + at as u64, factors[at]);
                Err(refused(format!("scale {index} is {value}, expected a number of at least 0")))
            }
        }
    }

    /// Symmetric weights may have zero points, which are zero.
    fn check_zero_points(&self, tensor: &Tensor) -> Result<(), LoadError> {
        let name = format!("{}{}", tensor.name, scaled::ZERO_POINT);
        let Some(Entry { file, tensor }) = self.tensors.get(&name) else { return Ok(()) };
        let stored = &tensor.parts.weight;
        let bytes = part(&self.files[*file].1, stored.offset, stored.size_bytes);
        match bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)) {
            true => Ok(()),
            false => {
                let reason = "it is not zero: asymmetric weights of 8 bits are not supported".to_owned();
                Err(LoadError::TensorData { name, reason })
            }
        }
    }
}
