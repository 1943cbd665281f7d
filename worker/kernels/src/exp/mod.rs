//! The exponential function for vectors, which softmax and swiglu share.
//! The scalar versions use the standard library's.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
