//! NVIDIA's libraries, which are loaded at run time. The bindings of the driver panic if the library or a
//! function is missing, so presence is checked here first, and a missing one is an error.
#![allow(unsafe_code)] // Loads shared libraries.

use std::sync::OnceLock;

use libloading::Library;

use crate::error::DeviceError;

const DRIVER: &str = "the NVIDIA driver (libcuda.so.1)";
const DRIVER_HINT: &str = "install NVIDIA's driver (the system's package nvidia-driver, or the NVIDIA container toolkit for a container), or compute on the CPU";
const NEWER_DRIVER_HINT: &str = "install a newer NVIDIA driver, 525 or later, or compute on the CPU";

/// The oldest CUDA version of a driver: machine code of NVRTC 12 runs on it.
const MIN_DRIVER: i32 = 12_000;

/// The functions of the driver that this crate calls.
const DRIVER_FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemsetD8Async",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
];

/// Checks that the driver is installed, has all functions and is new enough. Returns its CUDA version: 12040
/// is 12.4.
pub(super) fn require_driver() -> Result<i32, DeviceError> {
    static FOUND: OnceLock<Result<i32, DeviceError>> = OnceLock::new();
    let unusable = |reason, hint| DeviceError::Library { library: DRIVER, reason, hint };
    let check = || {
        // SAFETY: loading the driver has no conditions.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(unusable("it is not installed".to_owned(), DRIVER_HINT));
        }
        // SAFETY: the library is present, so this does not panic.
        require(unsafe { cudarc::driver::sys::culib() }, DRIVER_FUNCTIONS)
            .map_err(|reason| unusable(reason, NEWER_DRIVER_HINT))?;
        let mut version = 0;
        // SAFETY: valid for writing; this function needs no initialisation.
        unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) }.result().map_err(|error| {
            DeviceError::Driver { action: "report its version", reason: error.to_string() }
        })?;
        if version < MIN_DRIVER {
            let reason = format!("it supports CUDA {}, but 12.0 is required", show_version(version));
            return Err(unusable(reason, NEWER_DRIVER_HINT));
        }
        Ok(version)
    };
    FOUND.get_or_init(check).clone()
}

/// A CUDA version as people write it: 12040 is 12.4.
pub(super) fn show_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Checks that a library has all functions.
pub(super) fn require(library: &Library, functions: &[&str]) -> Result<(), String> {
    let is_missing = |name: &&&str| {
        // SAFETY: the symbol is only looked up, never used.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
    };
    match functions.iter().find(is_missing) {
        Some(name) => Err(format!("its version is too old, it has no function {name}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shown_as_people_write_them() {
        assert_eq!([12_040, 13_000, 11_080].map(show_version), ["12.4", "13.0", "11.8"]);
    }

    #[test]
    fn a_missing_driver_is_an_error_that_names_its_package() {
        if let Err(error) = require_driver() {
            assert!(matches!(error, DeviceError::Library { library: DRIVER, .. }), "{error}");
            assert!(error.to_string().contains("nvidia-driver"), "{error}");
        }
    }
}
