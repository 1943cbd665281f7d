//! The back end on the emulator: the conformance tests of devices, the test before a device is used, and how
//! failures surface.
#![allow(unsafe_code)] // Implements a driver.

use super::super::backend::Cuda;
use super::super::copies::Copies;
use super::super::cubin_cache::CubinCache;
use super::super::driver::{Address, DeviceMemory, Driver, Launch};
use super::super::emulator::{Emulator, Module};
use super::super::gpu::Gpu;
use super::super::program::Program;
use super::harness::is_available;
use super::machine_code;
use crate::error::DeviceError;
use crate::kernels::Kernels;
use crate::report;
use crate::self_test::{SelfTestError, check_device, check_rounding_device, self_test};

#[test]
fn the_back_end_agrees_with_the_scalar_cpu() {
    if is_available() {
        check_device(|| Cuda::new(Emulator::new()).unwrap());
        check_rounding_device(|| Cuda::new(Emulator::with_tensor_cores()).unwrap());
    }
}

/// On a machine with a GPU, the same on the GPU.
#[test]
fn a_gpu_agrees_with_the_scalar_cpu() {
    if !Gpu::count().is_ok_and(|count| count > 0) {
        report::skip_optional(&report::current_test(), "there is no GPU");
        return;
    }
    let Some(compiler) = machine_code::compiler() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = || CubinCache::new(folder.path());
    let open = || Gpu::open(0, compiler.clone(), cache()).unwrap();
    match open().has_tensor_cores() {
        true => check_rounding_device(|| Cuda::new(open()).unwrap()),
        false => check_device(|| Cuda::new(open()).unwrap()),
    }
}

/// A device that loses a launch of one kernel, or changes the bytes that are read from it.
struct Broken {
    device: Emulator,
    skipped: Option<&'static str>,
    changes_reads: bool,
}

impl Driver for Broken {
    type Module = Module;

    fn describe(&self) -> String {
        "broken".to_owned()
    }

    fn has_tensor_cores(&self) -> bool {
        self.device.has_tensor_cores()
    }

    fn memory(&mut self) -> Result<DeviceMemory, DeviceError> {
        self.device.memory()
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError> {
        self.device.allocate(what, bytes)
    }

    unsafe fn free(&mut self, at: Address) -> Result<(), DeviceError> {
        // SAFETY: as the caller guarantees; the same holds below.
        unsafe { self.device.free(at) }
    }

    unsafe fn copy_to_device(&mut self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.device.copy_to_device(to, from) }
    }

    unsafe fn copy_from_device(&mut self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.device.copy_from_device(to, from) }?;
        if self.changes_reads {
            // The exponent of the first float.
            to[3] ^= 2;
        }
        Ok(())
    }

    unsafe fn copy_within_device(&mut self, to: Address, from: Address, n: u64) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.device.copy_within_device(to, from, n) }
    }

    unsafe fn clear(&mut self, at: Address, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe { self.device.clear(at, bytes) }
    }

    fn load(&mut self, program: &Program) -> Result<Module, DeviceError> {
        self.device.load(program)
    }

    unsafe fn launch(
        &mut self,
        module: &Module,
        kernel: &str,
        launch: Launch,
        args: &[u8],
    ) -> Result<(), DeviceError> {
        if self.skipped.is_some_and(|skipped| skipped == kernel) {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.device.launch(module, kernel, launch, args) }
    }

    fn synchronise(&mut self) -> Result<(), DeviceError> {
        self.device.synchronise()
    }
}

#[test]
fn a_device_is_tested_before_it_is_used() {
    if !is_available() {
        return;
    }
    let devices = [Emulator::new, Emulator::with_tensor_cores];
    devices.iter().for_each(|device| self_test(&mut Cuda::new(device()).unwrap()).unwrap());
    for (skipped, changes_reads) in [
        (Some("store_heads"), false),
        (Some("attention_128"), false),
        (Some("merge_sections"), false),
        (Some("dot_tiles"), false),
        (Some("dot_experts"), false),
        (Some("dot_tensor_tiles_32"), false),
        (Some("dot_tensor_tiles_128"), false),
        (None, true),
    ] {
        let device = Broken { device: Emulator::with_tensor_cores(), skipped, changes_reads };
        let error = self_test(&mut Cuda::new(device).unwrap()).unwrap_err();
        assert!(matches!(error, SelfTestError::Results { .. }), "{skipped:?}: {error}");
    }
    let mut device = Emulator::new();
    let lost = DeviceError::Lost { device: "emulator".to_owned(), reason: "unplugged".to_owned() };
    device.plan_failure(lost.clone());
    let error = self_test(&mut Cuda::new(device).unwrap()).unwrap_err();
    assert_eq!(error, SelfTestError::Device(lost));
}

#[test]
fn memory_is_counted_and_returned() {
    if !is_available() {
        return;
    }
    let mut kernels = Cuda::new(Emulator::with_memory(1 << 20)).unwrap();
    assert_eq!(kernels.device_bytes(), 0);
    let floats = vec![0; 4 * 64 * 4];
    let weight = crate::Weight::floats(crate::Float::F32, (4, 64), floats.into()).unwrap();
    let matrix = kernels.matrix(&weight).unwrap();
    assert_eq!(kernels.device_bytes(), 4 * 64 * 4);
    drop(matrix);
    assert_eq!(kernels.device_bytes(), 0);

    let mut copies = Copies::new(Emulator::with_memory(1 << 20), 1 << 10).unwrap();
    copies.from_host().unwrap();
    copies.within_device().unwrap();
    assert!(Copies::new(Emulator::with_memory(1 << 10), 1 << 10).is_err());
}
