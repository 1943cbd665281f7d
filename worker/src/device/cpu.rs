//! This machine's processor.

use lode_kernels::{Ops, UnavailableLevel};
use serde::Serialize;

/// A processor, for display.
#[derive(Clone, Debug, Serialize)]
pub struct Processor {
    pub name: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The best instruction level of the kernels that it supports.
    pub level: String,
    /// The level that models use: a setting can choose a lower one.
    pub used_level: String,
}

impl Processor {
    /// `setting` is an instruction level, or `auto`.
    pub fn of_this_machine(setting: &str) -> Result<Self, UnavailableLevel> {
        let used_level = Ops::of_level(setting)?.name.to_owned();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { name: processor_name(), cores, level: Ops::best().name.to_owned(), used_level })
    }
}

/// The processor's name, if the kernel reports it.
pub(crate) fn processor_name() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}
