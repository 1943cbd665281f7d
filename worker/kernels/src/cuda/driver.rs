//! The interface of a CUDA device: memory, programs and launches.
#![allow(unsafe_code)] // The addresses of a device are not checked.

use super::program::Program;
use crate::error::DeviceError;

/// The address of a byte in the memory of a device. Zero is no address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// The number of blocks of a launch. The number of threads per block is a property of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    pub grid: [u32; 3],
    pub threads: u32,
}

/// The memory of a device in bytes: all of it, and what no process has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// A device that runs kernels. Copies and launches are queued in order; [`synchronise`](Driver::synchronise)
/// and [`copy_from_device`](Driver::copy_from_device) wait for them and return errors of earlier launches.
pub trait Driver: Send {
    /// A program that the device can run.
    type Module: Send;

    /// A description for users: `cuda:0 NVIDIA H100 PCIe`.
    fn describe(&self) -> String;

    /// Whether it has tensor cores that multiply BF16 with sums of f32: compute capability 8.0 or higher.
    fn has_tensor_cores(&self) -> bool;

    /// The device's memory now.
    fn memory(&mut self) -> Result<DeviceMemory, DeviceError>;

    /// Allocates memory whose address is a multiple of 16. Its content is undefined.
    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError>;

    /// Returns memory, after the queued work.
    ///
    /// # Safety
    /// `at` is from [`allocate`](Driver::allocate), and no later copy or launch uses it.
    unsafe fn free(&mut self, at: Address) -> Result<(), DeviceError>;

    /// Copies from the host. `from` may be reused when this returns.
    ///
    /// # Safety
    /// The bytes at `to` are allocated.
    unsafe fn copy_to_device(&mut self, to: Address, from: &[u8]) -> Result<(), DeviceError>;

    /// Waits for the queued work and copies to the host.
    ///
    /// # Safety
    /// The bytes at `from` are allocated.
    unsafe fn copy_from_device(&mut self, to: &mut [u8], from: Address) -> Result<(), DeviceError>;

    /// Copies between two places that do not overlap.
    ///
    /// # Safety
    /// The bytes at both addresses are allocated.
    unsafe fn copy_within_device(
        &mut self,
        to: Address,
        from: Address,
        bytes: u64,
    ) -> Result<(), DeviceError>;

    /// Sets bytes to zero.
    ///
    /// # Safety
    /// The bytes at `at` are allocated.
    unsafe fn clear(&mut self, at: Address, bytes: u64) -> Result<(), DeviceError>;

    /// Compiles a program, or takes it from a cache, and loads it.
    fn load(&mut self, program: &Program) -> Result<Self::Module, DeviceError>;

    /// Queues a kernel of a module with one argument struct, as bytes.
    ///
    /// # Safety
    /// The bytes are the struct that this kernel declares, and what its addresses and sizes name is
    /// allocated.
    unsafe fn launch(
        &mut self,
        module: &Self::Module,
        kernel: &str,
        launch: Launch,
        args: &[u8],
    ) -> Result<(), DeviceError>;

    /// Waits for the queued work.
    fn synchronise(&mut self) -> Result<(), DeviceError>;
}
