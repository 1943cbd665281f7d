//! Packed matrices on the device.

use std::sync::Arc;

use super::super::args;
use super::super::driver::Driver;
use super::super::memory::Memory;
use super::super::planes::Layout;
use super::Cuda;
use super::queue::unsupported;
use crate::error::DeviceError;
use crate::weight::Weight;

/// Bytes that are repacked and copied at a time when a weight is loaded.
const UPLOAD_BYTES: usize = 4 << 20;

/// A packed matrix.
pub struct Matrix<D: Driver> {
    pub(super) args: args::Matrix,
    /// The number of its format's kernels.
    pub(super) format: usize,
    /// Matrices with the same input share it.
    pub(super) memory: Arc<Memory<D>>,
}

impl<D: Driver> Matrix<D> {
    /// Whether the rows of `next` follow in memory.
    pub(super) fn is_followed_by(&self, next: &Self) -> bool {
        let end = self.args.planes[0] + u64::from(self.args.rows) * self.args.strides[0];
        Arc::ptr_eq(&self.memory, &next.memory) && next.args.planes[0] == end
    }
}

impl<D: Driver> Cuda<D> {
    /// Loads matrices. Neighbours with the same format and number of columns follow each other in memory.
    pub(super) fn load_matrices(&mut self, weights: &[Weight]) -> Result<Vec<Matrix<D>>, DeviceError> {
        let kind = |weight: &Weight| (weight.dtype(), weight.cols(), weight.factor().to_bits());
        let mut matrices = Vec::with_capacity(weights.len());
        for alike in weights.chunk_by(|a, b| kind(a) == kind(b)) {
            matrices.extend(self.stack(alike)?);
        }
        Ok(matrices)
    }

    /// Loads matrices of one format and one number of columns, one after the other in memory.
    pub(super) fn stack(&mut self, weights: &[Weight]) -> Result<Vec<Matrix<D>>, DeviceError> {
        let Some(first) = weights.first() else { return Ok(Vec::new()) };
        let (dtype, cols) = (first.dtype(), first.cols());
        let rows = weights.iter().map(Weight::rows).sum();
        let format = self.queue.load_format(dtype)?;
        let layout =
            |rows| Layout::of(dtype, rows, cols).ok_or_else(|| unsupported(format!("weights of {dtype:?}")));
        let size = |n: usize| {
            u32::try_from(n).map_err(|_| unsupported(format!("a matrix of {rows} rows and {cols} columns")))
        };
        size(rows)?;
        let whole = layout(rows)?;
        let mut memory = self.queue.driver.allocate("a weight", whole.bytes as u64)?;
        let (mut matrices, mut above, mut packed) = (Vec::with_capacity(weights.len()), 0, Vec::new());
        for weight in weights {
            let mut args = args::Matrix {
                rows: size(weight.rows())?,
                cols: size(cols)?,
                group: dtype.scale_group().map_or(Ok(0), size)?,
                factor: weight.factor(),
                ..args::Matrix::default()
            };
            let layout = layout(weight.rows())?;
            for (index, plane) in whole.planes.iter().enumerate() {
                let begin = (plane.offset + above * plane.stride) as u64;
                args.planes[index] = memory.at().plus(begin).0;
                args.strides[index] = plane.stride as u64;
                let at_a_time = (UPLOAD_BYTES / plane.stride.max(1)).max(1);
                for first in (0..weight.rows()).step_by(at_a_time) {
                    let n = at_a_time.min(weight.rows() - first);
                    packed.resize(n * plane.stride, 0);
                    layout.pack(weight, index, first, n, &mut packed);
                    memory.write(begin + (first * plane.stride) as u64, &packed)?;
                }
            }
            matrices.push(args);
            above += weight.rows();
        }
        let memory = Arc::new(memory);
        Ok(matrices.into_iter().map(|args| Matrix { args, format, memory: memory.clone() }).collect())
    }
}
