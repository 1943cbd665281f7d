//! The kernels for NVIDIA GPUs, and the seam under which they run.
//!
//! [`Driver`] is what the kernels need of a device. [`Gpu`] implements it with NVIDIA's libraries, which are
//! loaded at run time; the tests implement it with an emulator that executes the same sources on the host, so
//! that every kernel is tested on machines without a GPU. The `.cu` file of an operation is in the folder of its
//! scalar version. The formats of weights are in `decode/*.cuh`.

mod args;
mod backend;
mod copies;
mod cubin_cache;
mod driver;
mod gpu;
mod library;
mod memory;
mod nvrtc;
mod planes;
mod program;
mod tables;

#[cfg(test)]
mod emulator;
#[cfg(test)]
use crate::error::DeviceError;
#[cfg(test)]
mod tests;

pub use args::{
    Attend, DecodeRows, DotExperts, DotRows, ExpertPlanes, Matrix, MixExperts, Route, RowOp, Sample,
    StoreHeads,
};
pub use backend::{Cache, Cuda, ExpertWeights, MAX_PARTIAL_BYTES, Matrix as DeviceMatrix, Step, Vector};
pub use copies::Copies;
pub use cubin_cache::CubinCache;
pub use driver::{Address, DeviceMemory, Driver, Launch};
pub use gpu::{Gpu, GpuFacts};
pub use memory::Buffer;
pub use nvrtc::{Architecture, Compiled, NVRTC_FILES, Nvrtc};
pub use planes::{Layout, Plane};
pub use program::{DotRowsKernel, Program, attention_kernel, cache_row_bytes, dot_rows_kernel};
