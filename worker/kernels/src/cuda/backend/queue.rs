//! Launches: the kernels of a model's formats, with their arguments from matrices and buffers.
#![allow(unsafe_code)] // Launches kernels.

use bytemuck::Pod;

use super::super::args::{self, DecodeRows, DotExperts, DotRows, RowOp};
use super::super::driver::{Driver, Launch};
use super::super::memory::{Shared, View};
use super::super::program::{Program, dot_rows_kernel};
use super::Matrix;
use super::experts::AlikeMatrices;
use crate::dtype::{Dtype, Float};
use crate::error::DeviceError;
use crate::kernels::Activation;

/// The driver and the loaded programs.
pub(super) struct Queue<D: Driver> {
    pub(super) driver: Shared<D>,
    rows: D::Module,
    weights: Vec<Format<D>>,
    caches: Vec<(Dtype, D::Module)>,
}

/// The kernels of a format of weights.
struct Format<D: Driver> {
    dtype: Dtype,
    kernels: D::Module,
    /// Those for tensor cores, if the device and the format have them.
    tensor_tiles: Option<D::Module>,
}

const F32: Dtype = Dtype::Float(Float::F32);

impl<D: Driver> Queue<D> {
    pub(super) fn new(mut driver: D) -> Result<Self, DeviceError> {
        let rows = driver.load(&Program::of_rows())?;
        let driver = Shared::new(driver);
        let mut queue = Self { driver, rows, weights: Vec::new(), caches: Vec::new() };
        // Rows of buffers are gathered as those of a table.
        queue.load_format(F32)?;
        Ok(queue)
    }

    /// Loads the kernels of a format. Returns its number.
    pub(super) fn load_format(&mut self, dtype: Dtype) -> Result<usize, DeviceError> {
        if let Some(index) = self.weights.iter().position(|format| format.dtype == dtype) {
            return Ok(index);
        }
        let program =
            Program::of_format(dtype).ok_or_else(|| unsupported(format!("weights of {dtype:?}")))?;
        let mut driver = self.driver.lock();
        let kernels = driver.load(&program)?;
        let tiles = Program::of_tensor_tiles(dtype).filter(|_| driver.has_tensor_cores());
        let tensor_tiles = tiles.map(|program| driver.load(&program)).transpose()?;
        drop(driver);
        self.weights.push(Format { dtype, kernels, tensor_tiles });
        Ok(self.weights.len() - 1)
    }

    /// Loads the kernels of a cache. Returns its number.
    pub(super) fn load_cache(&mut self, dtype: Dtype) -> Result<usize, DeviceError> {
        if let Some(index) = self.caches.iter().position(|(loaded, _)| *loaded == dtype) {
            return Ok(index);
        }
        let program =
            Program::of_cache(dtype).ok_or_else(|| unsupported(format!("a KV cache of {dtype:?}")))?;
        let module = self.driver.lock().load(&program)?;
        self.caches.push((dtype, module));
        Ok(self.caches.len() - 1)
    }

    fn launch<A: Pod>(
        &self,
        module: &D::Module,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        args: &A,
    ) -> Result<(), DeviceError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let launch = Launch { grid, threads };
        // SAFETY: the callers give each kernel its struct. Addresses and sizes are those of matrices, caches
        // and buffers, which return their memory only after the queued work.
        unsafe { self.driver.lock().launch(module, kernel, launch, bytemuck::bytes_of(args)) }
    }

    /// A kernel over the cache.
    pub(super) fn over_cache<A: Pod>(
        &self,
        cache: usize,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        args: &A,
    ) -> Result<(), DeviceError> {
        self.launch(&self.caches[cache].1, kernel, grid, threads, args)
    }

    /// A kernel of [`Program::of_rows`] with a block per row.
    pub(super) fn by_row<A: Pod>(&self, kernel: &str, rows: u32, args: &A) -> Result<(), DeviceError> {
        self.launch(&self.rows, kernel, [rows, 1, 1], 256, args)
    }

    /// A kernel of [`Program::of_rows`] over all values of the rows.
    pub(super) fn by_value<A: Pod>(
        &self,
        kernel: &str,
        [rows, cols]: [u32; 2],
        args: &A,
    ) -> Result<(), DeviceError> {
        self.launch(&self.rows, kernel, [cols.div_ceil(256), rows, 1], 256, args)
    }

    /// `out = x * matrix^T + bias`, or added to what is there.
    pub(super) fn product(
        &self,
        matrix: &Matrix<D>,
        bias: Option<u64>,
        x: View,
        out: View,
        accumulate: bool,
    ) -> Result<(), DeviceError> {
        let m = matrix.args;
        assert!(x.cols == m.cols && out.cols == m.rows && out.rows == x.rows, "shapes match");
        let Format { dtype, kernels, tensor_tiles } = &self.weights[matrix.format];
        let (rows, columns) = (m.rows as usize, x.rows as usize);
        let kernel = dot_rows_kernel(*dtype, rows, columns, tensor_tiles.is_some());
        let module = tensor_tiles.as_ref().filter(|_| kernel.uses_tensor_cores).unwrap_or(kernels);
        let args = DotRows {
            matrix: m,
            x: x.at,
            out: out.at,
            bias: bias.unwrap_or(0),
            x_stride: x.stride,
            out_stride: out.stride,
            columns: x.rows,
            accumulate: u32::from(accumulate),
        };
        self.launch(module, kernel.name, kernel.grid(rows, columns), kernel.threads, &args)
    }

    /// Products with the same rows, to columns of `out` in the order of the matrices. Matrices that follow each other
    /// in memory are multiplied in one launch.
    pub(super) fn products(&self, matrices: &[&Matrix<D>], x: View, out: View) -> Result<(), DeviceError> {
        let mut first = 0;
        for adjacent in matrices.chunk_by(|a, b| a.is_followed_by(b)) {
            let rows: u32 = adjacent.iter().map(|matrix| matrix.args.rows).sum();
            let Matrix { args, format, memory } = adjacent[0];
            let matrix =
                Matrix { args: args::Matrix { rows, ..*args }, format: *format, memory: memory.clone() };
            self.product(&matrix, None, x, out.columns(first, rows as usize), false)?;
            first += rows as usize;
        }
        Ok(())
    }

    /// Products of rows with the matrices of their experts: a row of `out` for each of `choices`, of which as many in turn
    /// belong to each row of `x`.
    pub(super) fn chosen_product(
        &self,
        matrices: &AlikeMatrices,
        choices: u64,
        x: View,
        out: View,
    ) -> Result<(), DeviceError> {
        let matrix = matrices.first;
        assert!(x.cols == matrix.cols && out.cols == matrix.rows, "shapes match");
        let Format { dtype, kernels, .. } = &self.weights[matrices.format];
        let args = DotExperts {
            matrix,
            experts: matrices.planes,
            choices,
            x: x.at,
            out: out.at,
            x_stride: x.stride,
            out_stride: out.stride,
            slots: out.rows,
            shared: out.rows / x.rows.max(1),
        };
        let [rows, ..] =
            dot_rows_kernel(*dtype, matrix.rows as usize, 1, false).grid(matrix.rows as usize, 1);
        self.launch(kernels, "dot_experts", [rows, out.rows, 1], 128, &args)
    }

    /// `out = scale * table[ids]`, or `scale * table[ids] + plus` added to what is there; `args` has everything but the
    /// table and `out`.
    pub(super) fn look_up(&self, table: &Matrix<D>, out: View, args: DecodeRows) -> Result<(), DeviceError> {
        assert!(out.cols == table.args.cols, "shapes match");
        let args = DecodeRows { table: table.args, out: out.at, out_stride: out.stride, ..args };
        self.launch(&self.weights[table.format].kernels, "decode_rows", [out.rows, 1, 1], 128, &args)
    }

    /// `out = x[ids]`.
    pub(super) fn gather(&self, x: View, ids: u64, out: View) -> Result<(), DeviceError> {
        let mut table = args::Matrix { rows: x.rows, cols: x.cols, factor: 1.0, ..args::Matrix::default() };
        table.planes[0] = x.at;
        table.strides[0] = 4 * u64::from(x.stride);
        let args = DecodeRows {
            table,
            ids,
            out: out.at,
            out_stride: out.stride,
            scale: 1.0,
            ..DecodeRows::default()
        };
        self.launch(&self.weights[0].kernels, "decode_rows", [out.rows, 1, 1], 128, &args)
    }

    /// The root-mean-square norm of `x`, to `out`, or added to it. They may be the same.
    pub(super) fn rms_norm(
        &self,
        x: View,
        (weight, eps): (u64, f32),
        out: View,
        accumulate: bool,
    ) -> Result<(), DeviceError> {
        let args = RowOp {
            x: x.at,
            weight,
            out: out.at,
            cols: x.cols,
            x_stride: x.stride,
            out_stride: out.stride,
            scale: eps,
            accumulate: u32::from(accumulate),
            ..RowOp::default()
        };
        self.by_row("rms_norm", x.rows, &args)
    }

    /// `out = activation(gate) * up`.
    pub(super) fn activate(
        &self,
        activation: Activation,
        gate: View,
        up: View,
        out: View,
    ) -> Result<(), DeviceError> {
        let kernel = match activation {
            Activation::Silu => "swiglu",
            Activation::GeluTanh => "geglu",
        };
        let args = RowOp {
            x: gate.at,
            other: up.at,
            out: out.at,
            cols: gate.cols,
            x_stride: gate.stride,
            other_stride: up.stride,
            out_stride: out.stride,
            ..RowOp::default()
        };
        self.by_value(kernel, [gate.rows, gate.cols], &args)
    }
}

/// Arguments of a kernel that replaces rows.
pub(super) fn in_place(x: View) -> RowOp {
    RowOp { x: x.at, out: x.at, cols: x.cols, x_stride: x.stride, out_stride: x.stride, ..RowOp::default() }
}

pub(super) fn unsupported(what: String) -> DeviceError {
    DeviceError::Unsupported { what }
}
