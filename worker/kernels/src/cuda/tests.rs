//! The kernels on the emulator, compared with the scalar versions.

mod harness;
mod products;
mod primitives;
mod faults;
mod row_kernels;
