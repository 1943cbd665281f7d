//! The fused steps of a transformer over opaque buffers. The forward passes in the worker's `arch` are
//! written once over [`Kernels`]. `cpu` and `cuda` implement it.
//!
//! Each folder except `cpu` and `cuda` is one operation. Its `mod.rs` has the contract, the scalar version,
//! which is the specification, and a test that compares the versions for other instruction sets with it
//! within a stated error bound. `dot_bf16` exists for some instruction sets only.

mod batch;
mod columns;
pub mod cpu;
pub mod cuda;
mod decode;
mod dot_bf16;
mod dot_blocks;
mod dot_rows;
mod dtype;
mod error;
mod exp;
mod formats;
mod geglu;
mod gelu;
mod kernels;
mod layer_norm;
mod mix_rows;
mod ops;
mod pool;
#[cfg(target_arch = "x86_64")]
mod prefetch;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "shared with the end-to-end tests, which use all of it")]
#[path = "../../../tests/src/report.rs"]
mod report;
mod rms_norm;
mod rope;
mod rows;
mod self_test;
mod soft_cap;
mod softmax;
mod swiglu;
#[cfg(test)]
mod testing;
mod weight;
mod window;

pub use batch::{Batch, PAGE_LEN, Span};
pub use dtype::{ByteCode, DTYPES, Dtype, Float, KvType, Scaled, UnknownKvType};
pub use error::DeviceError;
pub use kernels::{
    Activation, Attention, CacheShape, Expert, Experts, GateUp, Kernels, LayerNorm, Linear, Norm, Qkv, Rope,
};
pub use ops::{BEST_LEVEL, Ops, UnavailableLevel};
pub use rope::Pairing;
pub use rows::Rows;
pub use self_test::{SelfTestError, self_test};
pub use weight::{Weight, WeightError};
pub use window::Window;

#[cfg(target_endian = "big")]
compile_error!("packed values are little-endian and are read in place");
