//! Memory of a device that is returned when its owner is dropped.
#![allow(unsafe_code)] // Calls the driver.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{Address, Driver};
use crate::error::DeviceError;

/// A driver that its allocations share, so that they outlive the back end.
pub(super) struct Shared<D>(Arc<Owner<D>>);

struct Owner<D> {
    driver: Mutex<D>,
    allocated_bytes: AtomicU64,
}

impl<D> Clone for Shared<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Driver> Shared<D> {
    pub(super) fn new(driver: D) -> Self {
        Self(Arc::new(Owner { driver: Mutex::new(driver), allocated_bytes: AtomicU64::new(0) }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, D> {
        self.0.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all allocations.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.0.allocated_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn allocate(&self, what: &'static str, bytes: u64) -> Result<Memory<D>, DeviceError> {
        let at = self.lock().allocate(what, bytes)?;
        self.0.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Memory { driver: self.clone(), at, bytes })
    }
}

/// An allocation.
pub(super) struct Memory<D: Driver> {
    driver: Shared<D>,
    at: Address,
    bytes: u64,
}

impl<D: Driver> Memory<D> {
    pub(super) fn at(&self) -> Address {
        self.at
    }

    /// Copies from the host to `offset`.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub(super) fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + from.len() as u64 <= self.bytes);
        // SAFETY: the bytes are inside of this allocation.
        unsafe { self.driver.lock().copy_to_device(self.at.plus(offset), from) }
    }

    /// Waits for the queued work and copies the first bytes to the host.
    ///
    /// # Panics
    /// If there are fewer bytes.
    pub(super) fn read(&self, to: &mut [u8]) -> Result<(), DeviceError> {
        assert!(to.len() as u64 <= self.bytes);
        // SAFETY: the bytes are inside of this allocation.
        unsafe { self.driver.lock().copy_from_device(to, self.at) }
    }

    /// Copies bytes from one place of this allocation to another that does not overlap.
    ///
    /// # Panics
    /// If one of them is outside.
    pub(super) fn copy_within(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError> {
        assert!(to + bytes <= self.bytes && from + bytes <= self.bytes && to.abs_diff(from) >= bytes);
        // SAFETY: both places are inside of this allocation.
        unsafe { self.driver.lock().copy_within_device(self.at.plus(to), self.at.plus(from), bytes) }
    }
}

impl<D: Driver> Drop for Memory<D> {
    fn drop(&mut self) {
        self.driver.0.allocated_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        // SAFETY: allocated in `Shared::allocate`; work that uses it is queued by owners of this value, before
        // now. A failure of the device is reported by the next operation that waits.
        let _ = unsafe { self.driver.lock().free(self.at) };
    }
}

/// Memory that grows and is reused. Its content is undefined after it grew.
pub(super) struct Reserved<D: Driver>(Option<Memory<D>>);

impl<D: Driver> Default for Reserved<D> {
    fn default() -> Self {
        Self(None)
    }
}

impl<D: Driver> Reserved<D> {
    /// Memory of at least this size.
    pub(super) fn at_least(
        &mut self,
        driver: &Shared<D>,
        what: &'static str,
        bytes: u64,
    ) -> Result<&mut Memory<D>, DeviceError> {
        if self.0.as_ref().is_some_and(|memory| memory.bytes < bytes) {
            // Returned first, so that both need not fit.
            self.0 = None;
        }
        match &mut self.0 {
            Some(memory) => Ok(memory),
            none => Ok(none.insert(driver.allocate(what, bytes)?)),
        }
    }

    pub(super) fn get(&self) -> Option<&Memory<D>> {
        self.0.as_ref()
    }
}

/// Rows of floats, each padded to whole units of the decoders.
pub struct Buffer<D: Driver> {
    memory: Reserved<D>,
    view: View,
}

/// The place and shape of rows of floats.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) at: u64,
    pub(super) rows: u32,
    pub(super) cols: u32,
    /// Values between rows.
    pub(super) stride: u32,
}

impl View {
    /// Some of its rows.
    pub(super) fn range(self, first: usize, rows: usize) -> Self {
        let at = self.at + 4 * first as u64 * u64::from(self.stride);
        Self { at, rows: rows as u32, ..self }
    }

    /// Some of its columns.
    pub(super) fn columns(self, first: usize, cols: usize) -> Self {
        Self { at: self.at + 4 * first as u64, cols: cols as u32, ..self }
    }
}

impl<D: Driver> Default for Buffer<D> {
    fn default() -> Self {
        Self { memory: Reserved::default(), view: View::default() }
    }
}

impl<D: Driver> Buffer<D> {
    /// A row starts at a whole unit of floats, see decode.cuh.
    const UNIT: usize = 32;

    /// Gives it a shape. The content is undefined.
    pub(super) fn resize(
        &mut self,
        driver: &Shared<D>,
        rows: usize,
        cols: usize,
    ) -> Result<View, DeviceError> {
        let stride = cols.next_multiple_of(Self::UNIT);
        let memory = self.memory.at_least(driver, "activations", 4 * rows as u64 * stride as u64)?;
        self.view = View { at: memory.at().0, rows: rows as u32, cols: cols as u32, stride: stride as u32 };
        Ok(self.view)
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    /// Waits for the queued work and appends the values.
    pub(super) fn read(&self, to: &mut Vec<f32>) -> Result<(), DeviceError> {
        let View { rows, cols, stride, .. } = self.view;
        let Some(memory) = self.memory.get() else { return Ok(()) };
        let first = to.len();
        if cols == stride {
            to.resize(first + (rows * cols) as usize, 0.0);
            return memory.read(bytemuck::cast_slice_mut(&mut to[first..]));
        }
        let mut padded = vec![0.0f32; rows as usize * stride as usize];
        memory.read(bytemuck::cast_slice_mut(&mut padded))?;
        padded.chunks_exact(stride as usize).for_each(|row| to.extend_from_slice(&row[..cols as usize]));
        Ok(())
    }
}
