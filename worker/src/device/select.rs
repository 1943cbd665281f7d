//! The choice of the device when a worker starts.

use std::path::PathBuf;

use lode_kernels::cuda::DeviceMemory;

use super::child::Prober;
use super::probe::{Found, Report};
use super::{CudaDevice, Device, DeviceSetting};

/// The device of a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selected {
    pub device: Device,
    /// `None` for the CPU.
    pub card: Option<Card>,
}

/// A GPU that passed its test.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    pub ordinal: usize,
    /// `cuda:0 NVIDIA H100 PCIe`
    pub name: String,
    /// When the worker started.
    pub memory: DeviceMemory,
}

/// The device that the operator asked for cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("device cuda:{ordinal} cannot be used: {reason}")]
pub struct DeviceUnusable {
    pub ordinal: usize,
    pub reason: String,
}

/// Chooses the device. With `auto`, a GPU is used only if it passes its test, and the log says what was found.
pub async fn select(setting: DeviceSetting, prober: &Prober) -> Result<Selected, DeviceUnusable> {
    let ordinal = match setting {
        DeviceSetting::Cpu => return Ok(Selected::default()),
        DeviceSetting::Auto => 0,
        DeviceSetting::Cuda(ordinal) => ordinal,
    };
    let probed = prober.run(&prober.test_of(Some(ordinal))).await;
    let has_device = probed.as_ref().is_ok_and(|report| !report.devices.is_empty());
    match (probed.and_then(|report| usable(&report, ordinal, prober)), setting) {
        (Ok(selected), _) => {
            if let Some(Card { name, memory, .. }) = &selected.card {
                let DeviceMemory { total_bytes, free_bytes } = memory;
                tracing::info!(
                    device = name,
                    total_bytes,
                    free_bytes,
                    "computing on a GPU, which passed its test"
                );
            }
            Ok(selected)
        }
        (Err(reason), DeviceSetting::Auto) => {
            match has_device {
                true => {
                    tracing::warn!(device = "cpu", reason, "computing on the CPU: the GPU cannot be used")
                }
                false => tracing::info!(device = "cpu", reason, "computing on the CPU: no GPU was found"),
            }
            Ok(Selected::default())
        }
        (Err(reason), _) => Err(DeviceUnusable { ordinal, reason }),
    }
}

/// The device of a report with this number, or why it cannot be used.
pub fn usable(report: &Report, ordinal: usize, prober: &Prober) -> Result<Selected, String> {
    let Report { nvrtc, error, devices, .. } = report;
    if let Some(error) = error {
        return Err(error.clone());
    }
    let found = devices.iter().find(|found| found.ordinal == ordinal);
    let Found { name, total_bytes, free_bytes, self_test_passed, error, .. } =
        found.ok_or_else(|| format!("there is no device cuda:{ordinal}"))?;
    let name = format!("cuda:{ordinal} {name}");
    if let Some(error) = error {
        return Err(format!("{name}: {error}"));
    }
    let (Some(nvrtc), Some(free_bytes), Some(true)) = (&nvrtc.path, *free_bytes, *self_test_passed) else {
        return Err(format!("{name}: it was not tested"));
    };
    let kernels = prober.kernels.clone().unwrap_or_else(|| PathBuf::from("/dev/null"));
    let memory = DeviceMemory { total_bytes: *total_bytes, free_bytes };
    let nvrtc = nvrtc.clone();
    Ok(Selected {
        device: Device::Cuda(CudaDevice { ordinal, nvrtc, kernels }),
        card: Some(Card { ordinal, name, memory }),
    })
}

#[cfg(test)]
mod tests {
    use super::super::child::tests::script;
    use super::super::probe::LibraryReport;
    use super::*;

    fn report(change: impl FnOnce(&mut Report)) -> Report {
        let library = |version: &str, path: &str| LibraryReport {
            version: Some(version.into()),
            path: Some(path.into()),
            error: None,
        };
        let device = Found {
            name: "NVIDIA Test".into(),
            compute_capability: "9.0".into(),
            total_bytes: 80 << 30,
            free_bytes: Some(79 << 30),
            self_test_passed: Some(true),
            ..Found::default()
        };
        let mut report = Report {
            driver: library("12.4", "/usr/lib/libcuda.so.1"),
            nvrtc: library("12.9", "/usr/lib/libnvrtc.so.12"),
            error: None,
            devices: vec![device],
        };
        change(&mut report);
        report
    }

    async fn select_with(setting: DeviceSetting, report: &Report) -> Result<Selected, DeviceUnusable> {
        let folder = tempfile::tempdir().unwrap();
        let json = serde_json::to_string(report).unwrap();
        select(setting, &script(folder.path(), &format!("echo '{json}'"))).await
    }

    #[tokio::test]
    async fn a_gpu_is_used_if_it_passes_its_test() {
        for setting in [DeviceSetting::Auto, DeviceSetting::Cuda(0)] {
            let selected = select_with(setting, &report(|_| {})).await.unwrap();
            let card = selected.card.unwrap();
            assert_eq!((card.name.as_str(), card.memory.free_bytes), ("cuda:0 NVIDIA Test", 79 << 30));
            let Device::Cuda(device) = selected.device else { panic!("it is a GPU") };
            assert_eq!(device.nvrtc, PathBuf::from("/usr/lib/libnvrtc.so.12"));
        }
    }

    #[tokio::test]
    async fn the_cpu_is_used_if_it_fails_unless_the_gpu_was_asked_for() {
        let failed = |report: &mut Report| {
            report.devices[0].self_test_passed = Some(false);
            report.devices[0].error = Some("the test of its kernels failed".into());
        };
        for (report, expect) in [
            (report(failed), "cuda:0 NVIDIA Test: the test of its kernels failed"),
            (report(|report| report.devices[0].self_test_passed = None), "it was not tested"),
            (report(|report| report.devices.clear()), "there is no device cuda:0"),
            (report(|report| report.error = Some("no driver".into())), "no driver"),
        ] {
            assert_eq!(select_with(DeviceSetting::Auto, &report).await.unwrap(), Selected::default());
            let error = select_with(DeviceSetting::Cuda(0), &report).await.unwrap_err().to_string();
            assert!(error.starts_with("device cuda:0 cannot be used: ") && error.contains(expect), "{error}");
        }
    }

    #[tokio::test]
    async fn a_crash_of_the_probe_is_a_gpu_that_cannot_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let prober = script(folder.path(), "kill -SEGV $$");
        assert_eq!(select(DeviceSetting::Auto, &prober).await.unwrap(), Selected::default());
        let error = select(DeviceSetting::Cuda(1), &prober).await.unwrap_err().to_string();
        assert!(error.contains("cuda:1") && error.contains("crashed"), "{error}");
    }

    #[tokio::test]
    async fn the_cpu_needs_no_probe() {
        let folder = tempfile::tempdir().unwrap();
        let started = folder.path().join("started");
        let prober = script(folder.path(), &format!("touch {}", started.display()));
        assert_eq!(select(DeviceSetting::Cpu, &prober).await.unwrap(), Selected::default());
        assert!(!started.exists());
    }
}
