//! Compiles programs for the host with g++, and keeps the shared objects in the target folder. Their names
//! are digests of all that they depend on.
#![allow(unsafe_code)] // Loads shared objects.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use libloading::Library;
use lode_model::digest::Digest;

use super::super::{DeviceError, Program};
use super::runtime;

const TYPES: &str = include_str!("../types.cuh");
const HEADER: &str = include_str!("emulator.h");
const RUNTIME: &str = include_str!("emulator.cpp");

/// Whether there is a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Compiler {
    /// Its version.
    Found(String),
    Missing,
    /// It compiles for another architecture than that of the tests, which run under emulation.
    OtherArchitecture,
}

pub(in super::super) fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let ask = |option| {
            let output = Command::new("g++").arg(option).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        match (ask("--version"), ask("-dumpmachine")) {
            (Some(version), Some(machine)) if machine.starts_with(std::env::consts::ARCH) => {
                Compiler::Found(version)
            }
            (Some(_), Some(_)) => Compiler::OtherArchitecture,
            _ => Compiler::Missing,
        }
    })
}

/// Fused multiplications are instructions, not calls, if the processor has them.
fn machine_options() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        return &["-mfma"];
    }
    &[]
}

/// The runtime, which executes blocks.
pub(super) fn runtime_library() -> Library {
    let path = compile("the emulator", RUNTIME, &["-pthread"]).expect("the emulator compiles");
    // SAFETY: its initialisation has no effects.
    unsafe { Library::new(path) }.expect("the emulator loads")
}

/// The kernels of a program. Each is compiled and loaded once per process.
pub(super) fn load(program: &Program) -> Result<Arc<Library>, DeviceError> {
    /// Loaded libraries by source. An entry is made before its library, so that programs compile side by
    /// side.
    type Loaded = HashMap<String, Arc<OnceLock<Arc<Library>>>>;
    static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap();
    let entry = loaded.get_or_insert_default().entry(program.source().to_owned()).or_default().clone();
    drop(loaded);
    if let Some(library) = entry.get() {
        return Ok(library.clone());
    }
    let path = compile(program.name(), program.source(), &[])?;
    let fail = |reason: String| DeviceError::Compile { program: program.name().to_owned(), reason };
    // SAFETY: its initialisation has no effects.
    let library = unsafe { Library::new(path) }.map_err(|error| fail(error.to_string()))?;
    // SAFETY: emulator.h defines this variable with this type, and no kernel runs yet.
    unsafe {
        let functions: libloading::Symbol<'_, *mut *const c_void> =
            library.get(b"lode_emulator").map_err(|error| fail(error.to_string()))?;
        **functions = runtime().functions;
    }
    Ok(entry.get_or_init(|| Arc::new(library)).clone())
}

/// Compiles a source text to a shared object.
fn compile(name: &str, source: &str, more: &[&str]) -> Result<PathBuf, DeviceError> {
    let fail = |reason: String| DeviceError::Compile { program: name.to_owned(), reason };
    let Compiler::Found(version) = compiler() else {
        return Err(fail("there is no g++ for this architecture".to_owned()));
    };
    let options = [
        &["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing"],
        machine_options(),
        more,
    ]
    .concat();
    let key = Digest::sha256([version, &options.join(" "), TYPES, HEADER, source].join("\n").as_bytes());
    let folder = std::env::current_exe().map_err(|error| fail(error.to_string()))?;
    let folder = folder.parent().unwrap_or(Path::new(".")).join("lode-emulator");
    let path = folder.join(format!("{}.so", key.hex()));
    if path.exists() {
        return Ok(path);
    }
    let write = || -> std::io::Result<tempfile::TempDir> {
        std::fs::create_dir_all(&folder)?;
        let scratch = tempfile::tempdir_in(&folder)?;
        std::fs::write(scratch.path().join("types.cuh"), TYPES)?;
        std::fs::write(scratch.path().join("emulator.h"), HEADER)?;
        std::fs::write(scratch.path().join("source.cpp"), source)?;
        Ok(scratch)
    };
    let scratch = write().map_err(|error| fail(error.to_string()))?;
    let output = Command::new("g++")
        .current_dir(scratch.path())
        .args(&options)
        .args(["-I.", "source.cpp", "-o", "object.so"])
        .output()
        .map_err(|error| fail(error.to_string()))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(fail(log.lines().take(30).collect::<Vec<_>>().join("\n")));
    }
    // Another process may have written the same bytes; renaming replaces them as a whole.
    std::fs::rename(scratch.path().join("object.so"), &path).map_err(|error| fail(error.to_string()))?;
    Ok(path)
}
