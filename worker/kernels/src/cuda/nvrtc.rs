//! Compiles programs for a GPU with NVRTC, NVIDIA's compiler library. It needs neither a GPU nor the headers
//! of the CUDA toolkit.
#![allow(unsafe_code)] // Loads NVRTC and calls it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use libloading::Library;

use super::library::{require, show_version};
use super::program::Program;
use crate::error::DeviceError;

const NVRTC: &str = "NVRTC (libnvrtc.so.12 or libnvrtc.so.13)";
const HINT: &str = "install the package nvidia-cuda-nvrtc-cu12 of PyPI or CUDA's package cuda-nvrtc-12-9, or compute on the CPU";
/// The oldest supported major version.
const MIN_MAJOR: i32 = 12;

/// The names of the library's file, of each supported major version; the first one is preferred.
pub const NVRTC_FILES: [&str; 2] = ["libnvrtc.so.12", "libnvrtc.so.13"];

/// The architecture of a GPU, by its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture {
    pub major: u32,
    pub minor: u32,
}

impl Architecture {
    /// The oldest one that the kernels are compiled for.
    pub const OLDEST: Architecture = Architecture { major: 7, minor: 5 };

    /// The first one whose tensor cores multiply BF16.
    pub const TENSOR_CORES: Architecture = Architecture { major: 8, minor: 0 };

    /// The name of the machine code. From 9.0 on it is the variant with all instructions of that generation,
    /// because the code is compiled for one device only.
    pub fn name(self) -> String {
        let Self { major, minor } = self;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

type ProgramHandle = *mut c_void;
/// NVRTC's status; zero is success.
type Status = c_int;
type GetSize = unsafe extern "C" fn(ProgramHandle, *mut usize) -> Status;
type GetBytes = unsafe extern "C" fn(ProgramHandle, *mut c_char) -> Status;

/// The functions of NVRTC that this crate calls, of one library file.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut ProgramHandle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(ProgramHandle, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut ProgramHandle) -> Status,
    log_size: GetSize,
    log: GetBytes,
    cubin_size: GetSize,
    cubin: GetBytes,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    /// Never unloaded: the functions are in it.
    _library: ManuallyDrop<Library>,
}

impl Functions {
    fn load(path: &Path) -> Result<Self, String> {
        // SAFETY: loading NVRTC has no conditions.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        let library = ManuallyDrop::new(library);
        require(
            &library,
            &[
                "nvrtcVersion",
                "nvrtcCreateProgram",
                "nvrtcCompileProgram",
                "nvrtcDestroyProgram",
                "nvrtcGetProgramLogSize",
                "nvrtcGetProgramLog",
                "nvrtcGetCUBINSize",
                "nvrtcGetCUBIN",
                "nvrtcGetErrorString",
            ],
        )?;
        let missing = |error: libloading::Error| error.to_string();
        // SAFETY: NVRTC's header declares these functions with these types.
        unsafe {
            Ok(Self {
                version: *library.get(b"nvrtcVersion").map_err(missing)?,
                create: *library.get(b"nvrtcCreateProgram").map_err(missing)?,
                compile: *library.get(b"nvrtcCompileProgram").map_err(missing)?,
                destroy: *library.get(b"nvrtcDestroyProgram").map_err(missing)?,
                log_size: *library.get(b"nvrtcGetProgramLogSize").map_err(missing)?,
                log: *library.get(b"nvrtcGetProgramLog").map_err(missing)?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize").map_err(missing)?,
                cubin: *library.get(b"nvrtcGetCUBIN").map_err(missing)?,
                error_string: *library.get(b"nvrtcGetErrorString").map_err(missing)?,
                _library: library,
            })
        }
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it returns a constant text for every status.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return Err(format!("error {status}"));
        }
        // SAFETY: a constant that ends with zero.
        Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Reads bytes of a program: their number, then the bytes.
    fn read(&self, program: ProgramHandle, size: GetSize, get: GetBytes) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the callers' program is not destroyed yet, and `bytes` is valid for writing.
        self.check(unsafe { size(program, &raw mut bytes) })?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: as above; the buffer has the size that NVRTC asked for.
        self.check(unsafe { get(program, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

/// The compiler. Cheap to clone.
#[derive(Clone)]
pub struct Nvrtc {
    version: (i32, i32),
    path: PathBuf,
    functions: Arc<Functions>,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc").field("version", &self.version).field("path", &self.path).finish()
    }
}

/// Machine code, and what the compiler wrote about it.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub cubin: Vec<u8>,
    pub log: String,
}

impl Nvrtc {
    /// Loads the first of `files` that is usable. The system looks for a file without a folder. `driver` is
    /// the driver's CUDA version, if there is one: it runs no machine code of a later major version.
    pub fn open(files: &[PathBuf], driver: Option<i32>) -> Result<Self, DeviceError> {
        let mut reasons: Vec<String> = Vec::new();
        for path in files {
            match Self::load(path) {
                Ok(found) => match found.check_version(driver) {
                    Ok(()) => return Ok(found),
                    Err(reason) => reasons.push(format!("{}: {reason}", path.display())),
                },
                // Most of these files are not there.
                Err(reason) if path.components().count() > 1 && path.exists() => {
                    reasons.push(format!("{} cannot be loaded: {reason}", path.display()));
                }
                Err(_) => {}
            }
        }
        let reason = if reasons.is_empty() { "it is not installed".to_owned() } else { reasons.join("; ") };
        Err(DeviceError::Library { library: NVRTC, reason, hint: HINT })
    }

    fn load(path: &Path) -> Result<Self, String> {
        let functions = Functions::load(path)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are valid for writing.
        functions.check(unsafe { (functions.version)(&raw mut major, &raw mut minor) })?;
        Ok(Self { version: (major, minor), path: path.to_owned(), functions: Arc::new(functions) })
    }

    fn check_version(&self, driver: Option<i32>) -> Result<(), String> {
        let (major, minor) = self.version;
        match driver {
            _ if major < MIN_MAJOR => {
                Err(format!("its version is {major}.{minor}, but {MIN_MAJOR}.0 is required"))
            }
            Some(driver) if major > driver / 1000 => {
                let driver = show_version(driver);
                Err(format!(
                    "its version {major}.{minor} is too new for the driver, which supports CUDA {driver}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The file, as it was named for [`open`](Self::open).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The options for an architecture. They are part of the key of a cached program.
    pub fn options(architecture: Architecture) -> Vec<String> {
        vec![
            format!("--gpu-architecture={}", architecture.name()),
            "--std=c++17".to_owned(),
            // Products and sums are fused only where a kernel says so, as on the host.
            "--fmad=false".to_owned(),
            // Registers, stack and spills of each kernel, in the log.
            "--ptxas-options=-v".to_owned(),
        ]
    }

    /// Compiles a program to machine code.
    pub fn compile(&self, program: &Program, architecture: Architecture) -> Result<Compiled, DeviceError> {
        let fail = |reason: String| DeviceError::Compile { program: program.name().to_owned(), reason };
        let source = CString::new(program.source()).map_err(|error| fail(error.to_string()))?;
        let options: Result<Vec<CString>, _> =
            Self::options(architecture).into_iter().map(CString::new).collect();
        let options = options.map_err(|error| fail(error.to_string()))?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let functions = &*self.functions;
        let mut handle = Handle { program: ptr::null_mut(), functions };
        // SAFETY: the text ends with zero; without names, the numbers of headers and their names are zero.
        let created = unsafe {
            (functions.create)(
                &raw mut handle.program,
                source.as_ptr(),
                ptr::null(),
                0,
                ptr::null(),
                ptr::null(),
            )
        };
        functions.check(created).map_err(fail)?;
        // SAFETY: the program is not destroyed yet, and the options end with zero.
        let status = unsafe { (functions.compile)(handle.program, options.len() as c_int, options.as_ptr()) };
        let log = functions.read(handle.program, functions.log_size, functions.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        if let Err(error) = functions.check(status) {
            let first: Vec<&str> = log.lines().filter(|line| line.contains("error")).take(5).collect();
            return Err(fail(format!("{error} for {}: {}", architecture.name(), first.join("; "))));
        }
        let cubin = functions.read(handle.program, functions.cubin_size, functions.cubin).map_err(fail)?;
        Ok(Compiled { cubin, log })
    }
}

struct Handle<'a> {
    program: ProgramHandle,
    functions: &'a Functions,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created once and destroyed only here. There is nothing to do about a failure.
            let _ = unsafe { (self.functions.destroy)(&raw mut self.program) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_that_names_its_packages() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join(NVRTC_FILES[0]);
        let error = Nvrtc::open(&[missing], None).unwrap_err().to_string();
        for part in ["libnvrtc.so.12", "it is not installed", "nvidia-cuda-nvrtc-cu12", "cuda-nvrtc-12-9"] {
            assert!(error.contains(part), "{error}");
        }
        // A file that is no library is named.
        let damaged = folder.path().join(NVRTC_FILES[1]);
        std::fs::write(&damaged, "text").unwrap();
        let error = Nvrtc::open(std::slice::from_ref(&damaged), None).unwrap_err().to_string();
        assert!(error.contains(damaged.to_str().unwrap()), "{error}");
    }
}
