//! Uploads, launches and downloads for the tests of kernels.
#![allow(unsafe_code)] // Calls the driver.

use bytemuck::Pod;

use super::super::args::Matrix;
use super::super::driver::{Address, Driver, Launch};
use super::super::emulator::{Compiler, Emulator, Module, compiler};
use super::super::planes::Layout;
use super::super::program::Program;
use crate::error::DeviceError;
use crate::report;
use crate::weight::Weight;

/// A device with one program.
pub(super) struct Harness {
    pub(super) device: Emulator,
    module: Module,
}

/// Whether this machine has a compiler for the emulator; if not, the test is reported as skipped.
pub(super) fn is_available() -> bool {
    match compiler() {
        Compiler::Found(_) => return true,
        Compiler::Missing => report::skip(&report::current_test(), "g++ is not installed"),
        Compiler::OtherArchitecture => {
            report::skip_optional(&report::current_test(), "g++ compiles for another architecture");
        }
    }
    false
}

impl Harness {
    /// `None` if this machine has no compiler for the emulator; the test is then reported as skipped.
    pub(super) fn new(program: &Program) -> Option<Self> {
        if !is_available() {
            return None;
        }
        let mut device = Emulator::new();
        let module = device.load(program).unwrap();
        Some(Self { device, module })
    }

    pub(super) fn upload<T: Pod>(&mut self, values: &[T]) -> Address {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let at = self.device.allocate("a test", bytes.len() as u64).unwrap();
        // SAFETY: just allocated with this length.
        unsafe { self.device.copy_to_device(at, bytes) }.unwrap();
        at
    }

    /// Memory for `n` floats, which are NaN.
    pub(super) fn floats(&mut self, n: usize) -> Address {
        self.device.allocate("a test", 4 * n as u64).unwrap()
    }

    pub(super) fn matrix(&mut self, weight: &Weight) -> Matrix {
        let layout = Layout::of(weight.dtype(), weight.rows(), weight.cols()).unwrap();
        let mut bytes = vec![0; layout.bytes];
        let mut matrix = Matrix {
            rows: weight.rows() as u32,
            cols: weight.cols() as u32,
            group: weight.dtype().scale_group().unwrap_or(0) as u32,
            factor: weight.factor(),
            ..Matrix::default()
        };
        for (index, plane) in layout.planes.iter().enumerate() {
            let to = &mut bytes[plane.offset..plane.offset + weight.rows() * plane.stride];
            layout.pack(weight, index, 0, weight.rows(), to);
        }
        // Each plane has its own allocation, so that an access behind its end is noticed.
        for (index, plane) in layout.planes.iter().enumerate() {
            let bytes = bytes[plane.offset..plane.offset + weight.rows() * plane.stride].to_vec();
            matrix.planes[index] = self.upload(&bytes).0;
            matrix.strides[index] = plane.stride as u64;
        }
        matrix
    }

    pub(super) fn try_launch<A: Pod>(
        &mut self,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        args: &A,
    ) -> Result<(), DeviceError> {
        // SAFETY: the emulator checks the size of the arguments and catches invalid accesses.
        unsafe {
            self.device.launch(&self.module, kernel, Launch { grid, threads }, bytemuck::bytes_of(args))?;
        }
        self.device.synchronise()
    }

    pub(super) fn launch<A: Pod>(&mut self, kernel: &str, grid: [u32; 3], threads: u32, args: &A) {
        self.try_launch(kernel, grid, threads, args).unwrap();
    }

    pub(super) fn read<T: Pod>(&mut self, at: Address, n: usize) -> Vec<T> {
        let mut values = vec![T::zeroed(); n];
        // SAFETY: the emulator checks that the bytes are allocated.
        unsafe { self.device.copy_from_device(bytemuck::cast_slice_mut(&mut values), at) }.unwrap();
        values
    }
}
