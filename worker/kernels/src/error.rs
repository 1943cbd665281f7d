//! The errors of devices.

/// The device failed. The engine that used it cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("out of memory: {what} needs {wanted_bytes} bytes; use a shorter context or a smaller model")]
    OutOfMemory { what: &'static str, wanted_bytes: u64 },
    #[error("cannot start the compute threads: {reason}")]
    Threads { reason: String },
    /// The device does not respond any more: it was removed, reset or had a hardware error.
    #[error("lost the device {device}: {reason}")]
    Lost { device: String, reason: String },
    /// A kernel did something invalid. All memory of the device's context is lost with it.
    #[error("kernel `{kernel}` failed: {reason}")]
    Fault { kernel: String, reason: String },
    /// A library that the device needs cannot be loaded.
    #[error("cannot use {library}: {reason}; {hint}")]
    Library { library: &'static str, reason: String, hint: &'static str },
    /// The kernels cannot be compiled for the device.
    #[error("cannot compile the kernels `{program}`: {reason}")]
    Compile { program: String, reason: String },
    /// The device has no kernels for something that a model needs.
    #[error("this device does not support {what}")]
    Unsupported { what: String },
    /// Another failure of the driver.
    #[error("the driver failed to {action}: {reason}")]
    Driver { action: &'static str, reason: String },
}
