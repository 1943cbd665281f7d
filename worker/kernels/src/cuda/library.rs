//! NVIDIA's libraries, which are loaded at run time. The bindings panic if a library or a function is
//! missing, so presence is checked here first, and a missing one is an error.
#![allow(unsafe_code)] // Loads shared libraries.

use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;

use crate::error::DeviceError;

const DRIVER: &str = "the NVIDIA driver (libcuda.so.1)";
const DRIVER_HINT: &str = "install NVIDIA's driver, or use the CPU";
const NVRTC: &str = "NVRTC (libnvrtc.so.12)";
const NVRTC_HINT: &str = "install the package nvidia-cuda-nvrtc-cu12 of PyPI or CUDA's package cuda-nvrtc-12";

/// The functions of the driver that this crate calls.
const DRIVER_FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDeviceGetName",
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
    "cuMemsetD8Async",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
];

/// The functions of NVRTC that this crate calls.
const NVRTC_FUNCTIONS: &[&str] = &[
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
];

/// Checks that the driver is installed and has all functions.
pub(super) fn require_driver() -> Result<(), DeviceError> {
    static FOUND: OnceLock<Result<(), DeviceError>> = OnceLock::new();
    let missing = |reason| DeviceError::Library { library: DRIVER, reason, hint: DRIVER_HINT };
    let check = || {
        // SAFETY: loading the driver has no conditions.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(missing("it is not installed".to_owned()));
        }
        // SAFETY: the library is present, so this does not panic.
        require(unsafe { cudarc::driver::sys::culib() }, DRIVER_FUNCTIONS).map_err(missing)
    };
    FOUND.get_or_init(check).clone()
}

/// Checks that NVRTC is installed and has all functions. It is looked for in `folder` first, if there is one,
/// then where the system looks for libraries.
pub(super) fn require_nvrtc(folder: Option<&Path>) -> Result<(), DeviceError> {
    static FOUND: OnceLock<()> = OnceLock::new();
    if FOUND.get().is_some() {
        return Ok(());
    }
    let missing = |reason| DeviceError::Library { library: NVRTC, reason, hint: NVRTC_HINT };
    if let Some(folder) = folder {
        let path = folder.join("libnvrtc.so.12");
        // SAFETY: loading NVRTC has no conditions.
        let library = unsafe { Library::new(&path) };
        let library =
            library.map_err(|error| missing(format!("{} cannot be loaded: {error}", path.display())))?;
        // The library stays loaded, and the bindings find it by its name.
        std::mem::forget(library);
    }
    // SAFETY: loading NVRTC has no conditions.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(missing("it is not installed".to_owned()));
    }
    // SAFETY: the library is present, so this does not panic.
    require(unsafe { cudarc::nvrtc::sys::culib() }, NVRTC_FUNCTIONS).map_err(missing)?;
    FOUND.get_or_init(|| ());
    Ok(())
}

fn require(library: &Library, functions: &[&str]) -> Result<(), String> {
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
    fn a_missing_library_is_an_error_that_names_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let error = require_nvrtc(Some(folder.path()));
        // Another test may have loaded it.
        if let Err(error) = error {
            assert!(error.to_string().contains("nvidia-cuda-nvrtc-cu12"), "{error}");
            assert!(error.to_string().contains("libnvrtc.so.12"), "{error}");
        }
        if let Err(error) = require_driver() {
            assert!(matches!(error, DeviceError::Library { library: DRIVER, .. }), "{error}");
        }
    }
}
