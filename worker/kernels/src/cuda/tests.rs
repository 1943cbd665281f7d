//! The kernels on the emulator, compared with the scalar versions, and their compilation for GPUs.

mod attention;
mod backend;
mod faults;
mod gpu;
mod harness;
mod machine_code;
mod primitives;
mod products;
mod row_kernels;
mod store_heads;
