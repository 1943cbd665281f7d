//! The exponential function for vectors, shared by softmax and swiglu. The scalar versions use the standard
//! library.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
