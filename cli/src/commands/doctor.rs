//! `lode doctor`: what this machine has for running models, and what is missing.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lode_worker::device::{
    DeviceSetting, Found, LibraryReport, ProbeRequest, Prober, Report, Selected, cpu, usable,
};
use lode_worker::scheduler::memory::Memory;
use serde::Serialize;

use crate::{
    args::Doctor,
    error::{FAILED, Failure, Outcome},
    settings, ui,
};

/// What was found, as `--json` prints it.
#[derive(Serialize)]
struct Findings {
    version: &'static str,
    cpu: cpu::Processor,
    memory: Amounts,
    cache: Cache,
    /// `None` with `--device cpu`, which loads no library of a GPU.
    cuda: Option<Report>,
    device: Choice,
}

#[derive(Serialize)]
struct Amounts {
    total_bytes: u64,
    free_bytes: u64,
}

#[derive(Serialize)]
struct Cache {
    folder: PathBuf,
    exists: bool,
    /// Of the file system.
    free_bytes: Option<u64>,
}

/// The device that a worker with these settings computes on.
#[derive(Serialize)]
struct Choice {
    setting: String,
    /// `None` if the GPU that was asked for cannot be used.
    selected: Option<String>,
    /// Why no GPU is used.
    reason: Option<String>,
}

pub(crate) async fn run(args: Doctor) -> Outcome<ExitCode> {
    let config = settings::doctor(&args, &settings::process_env)?;
    let cpu = cpu::Processor::of_this_machine(&config.cpu).map_err(|error| {
        Failure::new(error.to_string()).hint("change LODE_CPU or `cpu` in the settings file")
    })?;
    let folder = std::path::absolute(&config.cache).unwrap_or_else(|_| config.cache.clone());
    let exists = folder.is_dir();
    let mut prober = config.prober();
    if !exists {
        // The folder of a worker is created by the worker.
        prober.kernels = None;
    }
    let cuda = match config.device {
        DeviceSetting::Cpu => None,
        DeviceSetting::Auto | DeviceSetting::Cuda(_) => Some(probe(&prober).await),
    };
    let Memory { total_bytes, free_bytes } = Memory::now();
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION"),
        cpu,
        memory: Amounts { total_bytes, free_bytes },
        cache: Cache { free_bytes: free_space(&folder), folder, exists },
        device: choose(config.device, cuda.as_ref(), &prober),
        cuda,
    };
    match args.json {
        true => ui::json(&findings)?,
        false => lines(&findings).into_iter().try_for_each(ui::print_line)?,
    }
    Ok(match findings.device.selected {
        Some(_) => ExitCode::SUCCESS,
        None => ExitCode::from(FAILED),
    })
}

/// Probes all devices, and measures copies.
async fn probe(prober: &Prober) -> Report {
    let request = ProbeRequest { bandwidth: true, ..prober.test_of(None) };
    prober.run(&request).await.unwrap_or_else(|error| Report { error: Some(error), ..Report::default() })
}

/// As a worker chooses.
fn choose(setting: DeviceSetting, cuda: Option<&Report>, prober: &Prober) -> Choice {
    let ordinal = if let DeviceSetting::Cuda(ordinal) = setting { ordinal } else { 0 };
    let (selected, reason) = match cuda.map(|report| usable(report, ordinal, prober)) {
        None => (Some("cpu".to_owned()), None),
        Some(Ok(Selected { card, .. })) => (card.map(|card| card.name), None),
        Some(Err(reason)) if setting == DeviceSetting::Auto => (Some("cpu".to_owned()), Some(reason)),
        Some(Err(reason)) => (None, Some(reason)),
    };
    Choice { setting: setting.into(), selected, reason }
}

/// Free bytes of the file system of a folder that may not exist yet.
fn free_space(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|folder| folder.is_dir())?;
    let found = rustix::fs::statvfs(existing).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn lines(findings: &Findings) -> Vec<String> {
    let Findings { version, cpu, memory, cache, cuda, device } = findings;
    let free_of =
        |free: u64, total: u64| format!("{} free of {}", ui::format_size(free), ui::format_size(total));
    let cores = ui::counted(cpu.cores as u64, "core");
    let lower = match cpu.used_level == cpu.level {
        true => String::new(),
        false => format!(" (the setting; the processor has {})", cpu.level),
    };
    let mut lines = vec![
        format!("version   {version}"),
        format!("cpu       {}, {cores}, instructions: {}{lower}", cpu.name, cpu.used_level),
        format!("memory    {}", free_of(memory.free_bytes, memory.total_bytes)),
        format!(
            "cache     {}{}, {}",
            cache.folder.display(),
            if cache.exists { "" } else { " (does not exist yet)" },
            cache
                .free_bytes
                .map_or_else(|| "unknown".to_owned(), |free| format!("{} free", ui::format_size(free)))
        ),
    ];
    if let Some(report) = cuda {
        lines.push(format!("driver    {}", library(&report.driver)));
        lines.push(format!("nvrtc     {}", library(&report.nvrtc)));
        // The driver's own error is in its line.
        if let Some(error) = report.error.as_ref().filter(|error| report.driver.error.as_ref() != Some(error))
        {
            lines.push(format!("gpu       none: {error}"));
        }
        lines.extend(report.devices.iter().flat_map(|found| lines_of_device(found, &free_of)));
    }
    let selected = device.selected.as_deref().unwrap_or("none");
    let reason = match &device.reason {
        Some(_) if device.selected.is_some() => ", because no GPU can be used",
        Some(_) => ", because this GPU cannot be used",
        None => "",
    };
    lines.push(format!("device    {selected} (the setting is {}){reason}", device.setting));
    lines
}

fn library(report: &LibraryReport) -> String {
    match (&report.error, &report.version, &report.path) {
        (Some(error), _, _) => format!("not usable: {error}"),
        (None, Some(version), Some(path)) => format!("{version}, {}", path.display()),
        (None, Some(version), None) => version.clone(),
        (None, None, _) => "not looked for".to_owned(),
    }
}

fn lines_of_device(found: &Found, free_of: &dyn Fn(u64, u64) -> String) -> Vec<String> {
    let memory = match found.free_bytes {
        Some(free) => free_of(free, found.total_bytes),
        None => ui::format_size(found.total_bytes),
    };
    let Found { ordinal, name, compute_capability, .. } = found;
    let mut lines =
        vec![format!("cuda:{ordinal:<4} {name}, compute capability {compute_capability}, {memory}")];
    if found.self_test_passed == Some(true) {
        let seconds = found.self_test_ms.unwrap_or_default() as f64 / 1000.0;
        lines.push(format!("  kernels passed their test in {seconds:.1} s"));
    }
    if let Some(error) = &found.error {
        lines.push(format!("  not usable: {error}"));
    }
    let rates = (found.host_to_device_bytes_per_second, found.within_device_bytes_per_second);
    if let (Some(from_host), Some(within)) = rates {
        let rate = |bytes: u64| format!("{}/s", ui::format_size(bytes));
        lines.push(format!(
            "  copies: {} from the host, {} within the device",
            rate(from_host),
            rate(within)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(device: DeviceSetting, cuda: Option<Report>) -> Findings {
        let prober = lode_worker::Config::default().prober();
        Findings {
            version: "0.1.0",
            cpu: cpu::Processor {
                name: "A CPU".into(),
                cores: 2,
                level: "avx2".into(),
                used_level: "avx2".into(),
            },
            memory: Amounts { total_bytes: 2_000_000_000, free_bytes: 1_000_000_000 },
            cache: Cache { folder: "/srv/cache".into(), exists: false, free_bytes: Some(5_000_000_000) },
            device: choose(device, cuda.as_ref(), &prober),
            cuda,
        }
    }

    fn with_device() -> Report {
        let library = |version: &str, path: &str| LibraryReport {
            version: Some(version.into()),
            path: Some(path.into()),
            error: None,
        };
        let device = Found {
            name: "NVIDIA Test".into(),
            compute_capability: "9.0".into(),
            total_bytes: 80_000_000_000,
            free_bytes: Some(79_000_000_000),
            self_test_passed: Some(true),
            self_test_ms: Some(812),
            host_to_device_bytes_per_second: Some(24_000_000_000),
            within_device_bytes_per_second: Some(1_200_000_000_000),
            ..Found::default()
        };
        Report {
            driver: library("12.4", "/usr/lib/libcuda.so.1"),
            nvrtc: library("12.9", "/opt/libnvrtc.so.12"),
            error: None,
            devices: vec![device],
        }
    }

    #[test]
    fn a_machine_without_a_gpu() {
        let driver =
            LibraryReport { error: Some("no driver; install it".into()), ..LibraryReport::default() };
        let report = Report { driver, error: Some("no driver; install it".into()), ..Report::default() };
        let all = findings(DeviceSetting::Auto, Some(report.clone()));
        assert_eq!(
            lines(&all),
            [
                "version   0.1.0",
                "cpu       A CPU, 2 cores, instructions: avx2",
                "memory    1.0 GB free of 2.0 GB",
                "cache     /srv/cache (does not exist yet), 5.0 GB free",
                "driver    not usable: no driver; install it",
                "nvrtc     not looked for",
                "device    cpu (the setting is auto), because no GPU can be used",
            ]
        );
        let all = findings(DeviceSetting::Cuda(0), Some(report));
        assert_eq!(all.device.selected, None);
        let last = lines(&all).pop().unwrap();
        assert_eq!(last, "device    none (the setting is cuda:0), because this GPU cannot be used");
        let last = lines(&findings(DeviceSetting::Cpu, None)).pop().unwrap();
        assert_eq!(last, "device    cpu (the setting is cpu)");
    }

    #[test]
    fn a_lower_instruction_level() {
        let mut all = findings(DeviceSetting::Cpu, None);
        all.cpu.used_level = "scalar".into();
        let expected = "cpu       A CPU, 2 cores, instructions: scalar (the setting; the processor has avx2)";
        assert_eq!(lines(&all)[1], expected);
    }

    #[test]
    fn a_machine_with_a_gpu() {
        let all = findings(DeviceSetting::Auto, Some(with_device()));
        assert_eq!(
            lines(&all)[4..],
            [
                "driver    12.4, /usr/lib/libcuda.so.1",
                "nvrtc     12.9, /opt/libnvrtc.so.12",
                "cuda:0    NVIDIA Test, compute capability 9.0, 79.0 GB free of 80.0 GB",
                "  kernels passed their test in 0.8 s",
                "  copies: 24.0 GB/s from the host, 1.2 TB/s within the device",
                "device    cuda:0 NVIDIA Test (the setting is auto)",
            ]
        );
        // The second device does not exist.
        assert_eq!(findings(DeviceSetting::Cuda(1), Some(with_device())).device.selected, None);
        let mut failed = with_device();
        failed.devices[0].self_test_passed = Some(false);
        failed.devices[0].error = Some("the test failed".into());
        let all = findings(DeviceSetting::Auto, Some(failed));
        assert!(lines(&all).contains(&"  not usable: the test failed".to_owned()));
        assert_eq!(all.device.reason.as_deref(), Some("cuda:0 NVIDIA Test: the test failed"));
    }
}
