//! Finds the ONNX Runtime's library and loads it once for the process. The library is checked before `ort`
//! sees it, because `ort` panics on some libraries.
#![allow(unsafe_code)] // Loads a library and calls its functions.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ::ort::environment::Environment;
use ::ort::logging::LogLevel;
use libloading::{Library, Symbol};

use crate::python::{active_packages, packages_below};

/// Names the library.
const VARIABLE: &str = "ORT_DYLIB_PATH";
/// The names that the dynamic linker finds in its folders.
const NAMES: [&str; 2] = ["libonnxruntime.so.1", "libonnxruntime.so"];
/// The longest message of the runtime that is logged, in bytes.
const MAX_MESSAGE: usize = 2000;

/// The loaded runtime.
pub(super) struct Runtime {
    pub(super) environment: Environment,
    pub(super) version: String,
}

/// Why the runtime cannot be used. Messages have no local folders, because clients read them; the log does.
#[derive(Debug, thiserror::Error)]
pub(super) enum RuntimeError {
    #[error(
        "libonnxruntime.so was not found; install it on the worker with `pip install onnxruntime`, or set {VARIABLE} to its path"
    )]
    NotFound,
    #[error(
        "{library} cannot be loaded; the worker's log has the reason; set {VARIABLE} to the path of libonnxruntime.so"
    )]
    Load { library: String },
    #[error(
        "{library} is not the ONNX Runtime: it has no usable OrtGetApiBase; set {VARIABLE} to the path of libonnxruntime.so"
    )]
    NotTheRuntime { library: String },
    #[error(
        "{library} is version {version}, expected 1.{} or newer; install one with `pip install onnxruntime`, or set {VARIABLE} to its path",
        ::ort::MINOR_VERSION
    )]
    TooOld { library: String, version: String },
    #[error("{library} does not start: {reason}")]
    Start { library: String, reason: String },
}

/// Returns the runtime, which is loaded by the first call that finds it.
pub(super) fn runtime() -> Result<Arc<Runtime>, RuntimeError> {
    static RUNTIME: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);
    let mut runtime = RUNTIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(runtime) = &*runtime {
        return Ok(runtime.clone());
    }
    let candidates = match std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => vec![PathBuf::from(path)],
        None => candidates(),
    };
    let loaded = Arc::new(first_usable(&candidates)?);
    *runtime = Some(loaded.clone());
    Ok(loaded)
}

/// Loads the first library that can be used. If there is none, returns the error of the first that exists.
fn first_usable(candidates: &[PathBuf]) -> Result<Runtime, RuntimeError> {
    let mut first_error = None;
    for path in candidates {
        match load(path) {
            Ok(runtime) => {
                let version = runtime.version.as_str();
                tracing::info!(path = %path.display(), version, "loaded the ONNX Runtime");
                return Ok(runtime);
            }
            // The linker's own names are only tries.
            Err(RuntimeError::Load { .. }) if NAMES.iter().any(|name| path.as_path() == Path::new(name)) => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot use this ONNX Runtime");
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.unwrap_or(RuntimeError::NotFound))
}

fn load(path: &Path) -> Result<Runtime, RuntimeError> {
    let library = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
    let library = library.into_owned();
    let failed = |reason: String| {
        tracing::debug!(path = %path.display(), %reason, "failed to load a library");
        RuntimeError::Load { library: library.clone() }
    };
    if path.components().count() > 1 && !path.is_file() {
        return Err(failed("no such file".to_owned()));
    }
    // SAFETY: the operator names the library or has installed it as the ONNX Runtime, whose initialisation
    // has no requirements.
    let opened = unsafe { Library::new(path) }.map_err(|error| failed(error.to_string()))?;
    let version = version(&opened).ok_or_else(|| RuntimeError::NotTheRuntime { library: library.clone() })?;
    if !is_supported(&version) {
        return Err(RuntimeError::TooOld { library, version });
    }
    if !has_api(&opened) {
        return Err(RuntimeError::NotTheRuntime { library });
    }
    let start = |reason: String| RuntimeError::Start { library: library.clone(), reason };
    let builder = ::ort::init_from(path).map_err(|error| start(error.to_string()))?;
    let environment = builder
        .with_name("lode")
        .with_telemetry(false)
        .with_logger(Arc::new(|level, _category, _id, _place, message| log(level, message)))
        .build()
        .map_err(|error| start(error.to_string()))?;
    environment.set_log_level(LogLevel::Warning);
    Ok(Runtime { environment, version })
}

/// Forwards a message of the runtime to the log.
fn log(level: LogLevel, message: &str) {
    let end = message.floor_char_boundary(MAX_MESSAGE);
    let message = message.get(..end).unwrap_or_default();
    match level {
        LogLevel::Verbose => tracing::trace!(target: "onnxruntime", "{message}"),
        LogLevel::Info => tracing::debug!(target: "onnxruntime", "{message}"),
        LogLevel::Warning => tracing::info!(target: "onnxruntime", "{message}"),
        LogLevel::Error | LogLevel::Fatal => tracing::warn!(target: "onnxruntime", "{message}"),
    }
}

/// The entry of the runtime's API, which stays valid while the library is loaded.
fn api_base(library: &Library) -> Option<&::ort::sys::OrtApiBase> {
    // SAFETY: the runtime's public header defines the symbol with this type.
    let base: Symbol<'_, unsafe extern "C" fn() -> *const ::ort::sys::OrtApiBase> =
        unsafe { library.get(b"OrtGetApiBase") }.ok()?;
    // SAFETY: the function has no arguments and returns null or a static struct.
    unsafe { base().as_ref() }
}

fn version(library: &Library) -> Option<String> {
    let base = api_base(library)?;
    // SAFETY: the function has no arguments and returns null or a static text.
    let text = unsafe { (base.GetVersionString)() };
    // SAFETY: the text ends with a zero byte, as the runtime's public header says.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().ok().map(str::to_owned)).flatten()
}

fn has_api(library: &Library) -> bool {
    // SAFETY: the function returns null for a version that the library does not have.
    api_base(library).is_some_and(|base| !unsafe { (base.GetApi)(::ort::sys::ORT_API_VERSION) }.is_null())
}

/// Whether a version, such as `1.22.0`, has the API that is used.
fn is_supported(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(1), Some(minor)) => minor >= ::ort::MINOR_VERSION,
        _ => false,
    }
}

/// The libraries to try, in order: in the program's folder, in the active Python environments, where the dynamic
/// linker searches, and in the packages of the user's and the system's Python.
fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Ok(program) = std::env::current_exe()
        && let Some(folder) = program.parent()
    {
        found.extend(runtimes_in(folder));
        found.extend(runtimes_in(&folder.join("../lib")));
    }
    found.extend(active_packages().iter().flat_map(|folder| runtimes_of_package(folder)));
    found.extend(NAMES.map(PathBuf::from));
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    for prefix in home.into_iter().chain(["/usr/local".into(), "/usr".into()]) {
        found.extend(packages_below(&prefix).iter().flat_map(|folder| runtimes_of_package(folder)));
    }
    found
}

/// The runtimes of PyPI's package `onnxruntime` in a folder of packages.
fn runtimes_of_package(packages: &Path) -> Vec<PathBuf> {
    runtimes_in(&packages.join("onnxruntime/capi"))
}

/// The files in a folder that are named like the runtime: `libonnxruntime.so`, or with a version after it.
fn runtimes_in(folder: &Path) -> Vec<PathBuf> {
    let is_runtime = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix("libonnxruntime.so").is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_runtime).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for version in ["1.18.0", "1.32.0", "1.200"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["1.17.3", "0.99.0", "2.0.0", "1", "", "1.x"] {
            assert!(!is_supported(version), "{version}");
        }
    }

    #[test]
    fn libraries_of_the_package_are_found() {
        let packages = tempfile::tempdir().unwrap();
        let capi = packages.path().join("onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        for name in ["libonnxruntime.so.1.32.0", "libonnxruntime_providers_shared.so", "x.py"] {
            std::fs::write(capi.join(name), "").unwrap();
        }
        assert_eq!(runtimes_of_package(packages.path()), [capi.join("libonnxruntime.so.1.32.0")]);
        assert!(runtimes_of_package(&capi).is_empty());
    }

    /// None of these may panic or stop the process, and the next try works again.
    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("libonnxruntime.so");
        std::fs::write(&text, "this is text").unwrap();
        let message = |path: &Path| first_usable(&[path.to_owned()]).err().unwrap().to_string();
        for path in [&text, &folder.path().join("missing/libonnxruntime.so"), folder.path()] {
            let message = message(path);
            assert!(message.contains("cannot be loaded") && message.contains("ORT_DYLIB_PATH"), "{message}");
            assert!(
                !message.contains(&folder.path().to_string_lossy()[..]) || path == folder.path(),
                "{message}"
            );
        }
        assert!(message(Path::new("libm.so.6")).starts_with("libm.so.6 is not the ONNX Runtime"));
        let message = first_usable(&[]).err().unwrap().to_string();
        assert!(
            message.contains("pip install onnxruntime") && message.contains("ORT_DYLIB_PATH"),
            "{message}"
        );
    }
}
