//! The environment of child processes: runners and probes of devices.

/// The variables of this process that a child gets. Passwords and keys of the server are not among them.
const INHERITED: &[&str] = &[
    "CONDA_PREFIX",
    "CUDA_DEVICE_ORDER",
    "CUDA_INJECTION64_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "LODE_LOG",
    "ORT_DYLIB_PATH",
    "PATH",
    "RUST_BACKTRACE",
    "TMPDIR",
    "TZ",
    "VIRTUAL_ENV",
    "_RJEM_MALLOC_CONF",
];

/// The variables that a child inherits, with their values.
pub(crate) fn inherited() -> impl Iterator<Item = (&'static str, std::ffi::OsString)> {
    INHERITED.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)))
}
