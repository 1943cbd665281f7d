//! The compute device of a worker: the setting, the choice at the start, and the device that a runner opens.
//! The worker itself loads no library of a GPU: it starts a child process that tests the device
//! (`probe`), and its runners use it.

mod card;
mod child;
pub mod cpu;
mod nvrtc;
mod probe;
mod select;

use std::path::PathBuf;

use lode_kernels::DeviceError;
use lode_kernels::cuda::{CubinCache, Cuda, Gpu, Nvrtc};
use serde::{Deserialize, Serialize};

pub use card::CardMemory;
pub use child::Prober;
pub use nvrtc::nvrtc_files;
pub use probe::{Found, LibraryReport, ProbeRequest, Report, main as probe_main};
pub use select::{Card, DeviceUnusable, Selected, select, usable};

/// The setting `device`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceSetting {
    /// The first GPU if it passes its test, or else the CPU.
    #[default]
    Auto,
    Cpu,
    /// The GPU with this number, from 0.
    Cuda(usize),
}

/// The setting `device` has another value.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is no device; use auto, cpu, cuda, or cuda:N for the GPU with the number N, such as cuda:1 for the second"
)]
pub struct UnknownDevice(String);

impl TryFrom<String> for DeviceSetting {
    type Error = UnknownDevice;

    fn try_from(text: String) -> Result<Self, UnknownDevice> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            other => {
                // Parsing alone would accept a sign.
                let number =
                    other.strip_prefix("cuda:").filter(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
                let number = number.and_then(|digits| digits.parse::<u16>().ok());
                number.map(|number| Self::Cuda(usize::from(number))).ok_or(UnknownDevice(text))
            }
        }
    }
}

impl From<DeviceSetting> for String {
    fn from(setting: DeviceSetting) -> String {
        match setting {
            DeviceSetting::Auto => "auto".to_owned(),
            DeviceSetting::Cpu => "cpu".to_owned(),
            DeviceSetting::Cuda(number) => format!("cuda:{number}"),
        }
    }
}

/// The device that a runner computes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    #[default]
    Cpu,
    Cuda(CudaDevice),
}

/// A GPU, and what a process needs to use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// The GPU's number, from 0.
    pub ordinal: usize,
    /// The file of the compiler's library.
    pub nvrtc: PathBuf,
    /// The folder of compiled kernels.
    pub kernels: PathBuf,
}

impl CudaDevice {
    /// Opens the device in this process.
    pub fn open(&self) -> Result<Cuda<Gpu>, DeviceError> {
        let driver = Gpu::driver_version()?;
        let compiler = Nvrtc::open(std::slice::from_ref(&self.nvrtc), Some(driver))?;
        Cuda::new(Gpu::open(self.ordinal, compiler, CubinCache::new(&self.kernels))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings() {
        let check = |text: &str, expect: Option<DeviceSetting>| {
            assert_eq!(DeviceSetting::try_from(text.to_owned()).ok(), expect, "{text}");
        };
        check("auto", Some(DeviceSetting::Auto));
        check("cpu", Some(DeviceSetting::Cpu));
        check("cuda", Some(DeviceSetting::Cuda(0)));
        check("cuda:3", Some(DeviceSetting::Cuda(3)));
        for wrong in
            ["", "gpu", "CUDA", "cuda:", "cuda:+1", "cuda:-1", "cuda:x", "cuda:99999999999", "cuda:0 "]
        {
            check(wrong, None);
        }
        let error = DeviceSetting::try_from("gpu".to_owned()).unwrap_err().to_string();
        assert!(["gpu", "auto", "cpu", "cuda", "cuda:N"].iter().all(|part| error.contains(part)), "{error}");
        for setting in [DeviceSetting::Auto, DeviceSetting::Cpu, DeviceSetting::Cuda(2)] {
            assert_eq!(DeviceSetting::try_from(String::from(setting)).unwrap(), setting);
        }
    }

    #[test]
    fn a_device_that_cannot_be_opened_is_an_error() {
        let device = CudaDevice { ordinal: 900, nvrtc: "/nowhere/nvrtc".into(), kernels: "/nowhere".into() };
        let error = device.open().err().expect("there are fewer devices, or none");
        assert!(!error.to_string().is_empty());
    }
}
