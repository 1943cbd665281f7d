//! The probe of devices, in a process of its own: it loads NVIDIA's libraries, and tests each device with
//! kernels. If a library crashes or hangs, only the probe ends. `lode runner --probe` calls [`main`].

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lode_kernels::cuda::{Copies, CubinCache, Cuda, Gpu, Nvrtc};
use lode_kernels::{DeviceError, self_test};
use serde::{Deserialize, Serialize};

/// Bytes of a measured copy, and the time for which copies are repeated.
const COPY_BYTES: usize = 64 << 20;
const COPY_TIME: Duration = Duration::from_millis(300);

/// What a probe does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// The number of the only device to look at; `None`: all of them.
    pub device: Option<usize>,
    /// Files of NVRTC to try, in this order.
    pub nvrtc: Vec<PathBuf>,
    /// The folder of compiled kernels; without one, each probe compiles them.
    pub kernels: Option<PathBuf>,
    /// Whether to look for NVRTC and to run the test of kernels.
    pub self_test: bool,
    /// Whether to measure copies.
    pub bandwidth: bool,
}

/// What a probe found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub driver: LibraryReport,
    pub nvrtc: LibraryReport,
    /// Why no device can be looked at.
    pub error: Option<String>,
    pub devices: Vec<Found>,
}

/// A library: its version and file, or why it cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LibraryReport {
    pub version: Option<String>,
    pub path: Option<PathBuf>,
    pub error: Option<String>,
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub ordinal: usize,
    pub name: String,
    /// `9.0`
    pub compute_capability: String,
    pub total_bytes: u64,
    /// Without the context of the probe itself, which is freed at its end.
    pub free_bytes: Option<u64>,
    /// Whether the results of the kernels are right; `None` if they were not computed.
    pub self_test_passed: Option<bool>,
    /// How long the test took, with the compilation of kernels that were not in the folder.
    pub self_test_ms: Option<u64>,
    /// Why the device cannot be used.
    pub error: Option<String>,
    pub host_to_device_bytes_per_second: Option<u64>,
    /// Bytes copied; each is read and written.
    pub within_device_bytes_per_second: Option<u64>,
}

/// Runs a probe. Writes one line of JSON for the process that started it.
pub fn main(request: &ProbeRequest) -> String {
    // Ignore errors: the probe also ends by itself.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // The fields are texts and numbers.
    serde_json::to_string(&probe(request)).unwrap_or_default()
}

fn probe(request: &ProbeRequest) -> Report {
    let mut report = Report::default();
    let driver = Gpu::driver_version();
    match &driver {
        Ok(version) => {
            report.driver.version = Some(format!("{}.{}", version / 1000, version % 1000 / 10));
            report.driver.path = mapped_file("libcuda.so");
        }
        Err(error) => report.driver.error = Some(error.to_string()),
    }
    let mut compiler = None;
    if request.self_test {
        match Nvrtc::open(&request.nvrtc, driver.as_ref().ok().copied()) {
            Ok(found) => {
                let (major, minor) = found.version();
                report.nvrtc.version = Some(format!("{major}.{minor}"));
                report.nvrtc.path = Some(loaded_file(found.path()));
                compiler = Some(found);
            }
            Err(error) => report.nvrtc.error = Some(error.to_string()),
        }
    }
    let count = match driver.and_then(|_| Gpu::count()) {
        Ok(0) => Err("the driver has no device".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    };
    match (count, request.device) {
        (Err(error), _) => report.error = Some(error),
        (Ok(count), Some(ordinal)) if ordinal >= count => {
            let last = count - 1;
            report.error =
                Some(format!("there is no device cuda:{ordinal}; the devices are cuda:0 to cuda:{last}"));
        }
        (Ok(_), Some(ordinal)) => report.devices.push(look_at(ordinal, request, compiler.as_ref())),
        (Ok(count), None) => {
            report.devices.extend((0..count).map(|ordinal| look_at(ordinal, request, compiler.as_ref())));
        }
    }
    for device in &mut report.devices {
        if let (None, Some(error)) = (&device.error, &report.nvrtc.error) {
            device.error = Some(error.clone());
        }
    }
    report
}

fn look_at(ordinal: usize, request: &ProbeRequest, compiler: Option<&Nvrtc>) -> Found {
    let mut found = Found { ordinal, ..Found::default() };
    if let Err(error) = examine(&mut found, request, compiler) {
        found.error = Some(error);
    }
    found
}

fn examine(found: &mut Found, request: &ProbeRequest, compiler: Option<&Nvrtc>) -> Result<(), String> {
    let text = |error: DeviceError| error.to_string();
    let facts = Gpu::facts(found.ordinal).map_err(text)?;
    found.name = facts.name;
    found.compute_capability = facts.architecture.to_string();
    found.total_bytes = facts.total_bytes;
    found.free_bytes = Some(Gpu::memory_of(found.ordinal).map_err(text)?.free_bytes);
    let Some(compiler) = compiler else { return Ok(()) };
    let open = || {
        let cache = request.kernels.as_ref().map_or_else(CubinCache::disabled, CubinCache::new);
        Gpu::open(found.ordinal, compiler.clone(), cache)
    };
    let started = Instant::now();
    let mut kernels = Cuda::new(open().map_err(text)?).map_err(text)?;
    let result = self_test(&mut kernels);
    drop(kernels);
    found.self_test_ms = Some(millis(started));
    found.self_test_passed = Some(result.is_ok());
    result.map_err(|error| format!("the test of its kernels failed: {error}"))?;
    if request.bandwidth {
        let mut copies = Copies::new(open().map_err(text)?, COPY_BYTES).map_err(text)?;
        found.host_to_device_bytes_per_second = Some(measure(|| copies.from_host()).map_err(text)?);
        found.within_device_bytes_per_second = Some(measure(|| copies.within_device()).map_err(text)?);
    }
    Ok(())
}

/// Bytes per second of repeated copies, without the first.
fn measure(mut copy: impl FnMut() -> Result<(), DeviceError>) -> Result<u64, DeviceError> {
    copy()?;
    let (started, mut copies) = (Instant::now(), 0u32);
    while started.elapsed() < COPY_TIME {
        copy()?;
        copies += 1;
    }
    let bytes = COPY_BYTES as f64 * f64::from(copies);
    Ok((bytes / started.elapsed().as_secs_f64()) as u64)
}

fn millis(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The file of a library that was loaded by this path. Libraries that were tried and refused stay mapped, so only a name without a folder, which the
/// system looked for, is searched among the mapped files.
fn loaded_file(library: &Path) -> PathBuf {
    let has_folder = library.components().count() > 1;
    let name = library.to_str().filter(|_| !has_folder);
    name.and_then(mapped_file).unwrap_or_else(|| library.to_owned())
}

/// The file of a library that this process has loaded, by the beginning of its name.
fn mapped_file(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().find_map(|line| {
        let path = Path::new(line.get(line.find('/')?..)?);
        path.file_name()?.to_str()?.starts_with(name).then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_library() {
        for path in ["/opt/nvrtc/libnvrtc.so.12", "libnothing.so.7"] {
            assert_eq!(loaded_file(Path::new(path)), Path::new(path));
        }
        let libc = loaded_file(Path::new("libc.so.6"));
        assert!(libc.is_absolute() && libc.ends_with("libc.so.6"), "{}", libc.display());
    }

    /// On machines with and without a GPU: a device that does not exist is a value with a reason.
    #[test]
    fn a_probe_always_gives_a_report() {
        let request = ProbeRequest { device: Some(999), self_test: true, ..ProbeRequest::default() };
        let report: Report = serde_json::from_str(&main(&request)).unwrap();
        assert!(report.devices.is_empty(), "{report:?}");
        assert!(report.error.is_some(), "{report:?}");
        assert!(report.nvrtc.error.is_some_and(|error| error.contains("nvidia-cuda-nvrtc-cu12")));
    }

    #[test]
    fn loaded_files_are_found() {
        assert!(mapped_file("libc.so").is_some() || mapped_file("ld-musl").is_some());
        assert_eq!(mapped_file("libnothing"), None);
    }
}
