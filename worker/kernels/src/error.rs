//! The errors of devices.

/// The device failed. The engine that used it cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("out of device memory: {what} needs {wanted_bytes} bytes")]
    OutOfMemory { what: &'static str, wanted_bytes: u64 },
    #[error("cannot start the compute threads: {reason}")]
    Threads { reason: String },
}
