//! Compiles programs for a GPU with NVRTC, NVIDIA's compiler library. It needs neither a GPU nor the headers
//! of the CUDA toolkit.
#![allow(unsafe_code)] // Calls NVRTC.

use std::ffi::{CString, c_char};
use std::path::Path;

use cudarc::nvrtc::{result, sys};

use super::library::require_nvrtc;
use super::program::Program;
use crate::error::DeviceError;

/// The architecture of a GPU, by its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Architecture {
    pub major: u32,
    pub minor: u32,
}

impl Architecture {
    /// The name of the machine code. From 9.0 on it is the variant with all instructions of that generation,
    /// because the code is compiled for one device only.
    pub fn name(self) -> String {
        let Self { major, minor } = self;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }
}

/// The compiler.
#[derive(Clone, Copy, Debug)]
pub struct Nvrtc {
    version: (i32, i32),
}

/// Machine code, and what the compiler wrote about it.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub cubin: Vec<u8>,
    pub log: String,
}

impl Nvrtc {
    /// Loads the library from `folder`, or from where the system finds it.
    pub fn open(folder: Option<&Path>) -> Result<Self, DeviceError> {
        require_nvrtc(folder)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both are valid for writing.
        unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result().map_err(|error| {
            DeviceError::Driver { action: "ask NVRTC for its version", reason: error.to_string() }
        })?;
        Ok(Self { version: (major, minor) })
    }

    /// Major and minor version.
    pub fn version(self) -> (i32, i32) {
        self.version
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
    pub fn compile(self, program: &Program, architecture: Architecture) -> Result<Compiled, DeviceError> {
        let fail = |reason: String| DeviceError::Compile { program: program.name().to_owned(), reason };
        let source = CString::new(program.source()).map_err(|error| fail(error.to_string()))?;
        let handle = Handle(result::create_program(&source, None).map_err(|error| fail(error.to_string()))?);
        // SAFETY: the handle is a program that is not destroyed yet.
        let status = unsafe { result::compile_program(handle.0, &Self::options(architecture)) };
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(handle.0) }.map(|log| text(&log)).unwrap_or_default();
        if let Err(error) = status {
            let first: Vec<&str> = log.lines().filter(|line| line.contains("error")).take(5).collect();
            return Err(fail(format!("{error} for {}: {}", architecture.name(), first.join("; "))));
        }
        let mut bytes = 0;
        // SAFETY: as above, and `bytes` is valid for writing.
        unsafe { sys::nvrtcGetCUBINSize(handle.0, &raw mut bytes) }
            .result()
            .map_err(|error| fail(error.to_string()))?;
        let mut cubin = vec![0u8; bytes];
        // SAFETY: as above; the buffer has the size that NVRTC asked for.
        unsafe { sys::nvrtcGetCUBIN(handle.0, cubin.as_mut_ptr().cast()) }
            .result()
            .map_err(|error| fail(error.to_string()))?;
        Ok(Compiled { cubin, log })
    }
}

struct Handle(sys::nvrtcProgram);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed only here. There is nothing to do about a failure.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn text(log: &[c_char]) -> String {
    let bytes: Vec<u8> = log.iter().map(|c| c.cast_unsigned_byte()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `c_char` is signed on some platforms and unsigned on others.
trait CastUnsignedByte {
    fn cast_unsigned_byte(self) -> u8;
}

impl CastUnsignedByte for c_char {
    fn cast_unsigned_byte(self) -> u8 {
        self.to_ne_bytes()[0]
    }
}
