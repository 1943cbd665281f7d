//! Copies of one size, whose caller measures how long they take.

use super::driver::Driver;
use super::memory::{Memory, Shared};
use crate::error::DeviceError;

/// Memory to copy to and within.
pub struct Copies<D: Driver> {
    driver: Shared<D>,
    host: Vec<u8>,
    /// Twice the bytes of a copy.
    device: Memory<D>,
}

impl<D: Driver> Copies<D> {
    /// Allocates memory for copies of `bytes`.
    pub fn new(driver: D, bytes: usize) -> Result<Self, DeviceError> {
        let driver = Shared::new(driver);
        let device = driver.allocate("a test of copies", 2 * bytes as u64)?;
        // Not zero, so that the pages exist.
        Ok(Self { driver, host: vec![1; bytes], device })
    }

    /// Copies the bytes from the host, and waits.
    pub fn from_host(&mut self) -> Result<(), DeviceError> {
        self.device.write(0, &self.host)
    }

    /// Copies the bytes from one half of the device's memory to the other, and waits.
    pub fn within_device(&mut self) -> Result<(), DeviceError> {
        let bytes = self.host.len() as u64;
        self.device.copy_within(bytes, 0, bytes)?;
        self.driver.lock().synchronise()
    }
}
