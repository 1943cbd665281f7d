//! A GPU through NVIDIA's driver.
#![allow(unsafe_code)] // Calls the driver.

use std::collections::HashMap;
use std::ffi::{CString, c_void};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};

use super::cubin_cache::CubinCache;
use super::driver::{Address, DeviceMemory, Driver, Launch};
use super::library::require_driver;
use super::nvrtc::{Architecture, Nvrtc};
use super::program::Program;
use crate::error::DeviceError;

/// What the driver reports about a device without using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFacts {
    pub name: String,
    pub architecture: Architecture,
    pub total_bytes: u64,
}

/// A device with a stream of its own.
pub struct Gpu {
    number: usize,
    name: String,
    architecture: Architecture,
    driver_version: i32,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    compiler: Nvrtc,
    cache: CubinCache,
    /// The kernel that was launched last, which a fault is attributed to.
    last_kernel: String,
}

// SAFETY: the handles may be used from any thread, one at a time; each method makes the context current
// first.
unsafe impl Send for Gpu {}

/// A loaded program.
pub struct GpuModule {
    functions: HashMap<&'static str, sys::CUfunction>,
}

// SAFETY: the handles are only used through `Gpu`, which is used from one thread at a time.
unsafe impl Send for GpuModule {}

impl Gpu {
    /// The CUDA version of the driver, or why it is unusable: 12040 is 12.4.
    pub fn driver_version() -> Result<i32, DeviceError> {
        require_driver()
    }

    /// The number of devices, or why there are none.
    pub fn count() -> Result<usize, DeviceError> {
        require_driver()?;
        result::init().map_err(|error| of_driver("initialise", error))?;
        let count = result::device::get_count().map_err(|error| of_driver("count the devices", error))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The memory of a device. A context is created for the measurement, and is part of what is not free.
    pub fn memory_of(number: usize) -> Result<DeviceMemory, DeviceError> {
        let (device, _) = Self::find(number)?;
        let fail = |error| of_driver("report the memory of a device", error);
        // SAFETY: the device exists.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(fail)?;
        // SAFETY: the context was retained above.
        let entered = unsafe { result::ctx::set_current(context) };
        let memory = entered.and_then(|()| result::mem_get_info());
        // SAFETY: retained above, and not used any more. There is nothing to do about a failure.
        let _ = unsafe { result::primary_ctx::release(device) };
        let (free, total) = memory.map_err(fail)?;
        Ok(DeviceMemory { total_bytes: total as u64, free_bytes: free as u64 })
    }

    /// Describes a device by its number.
    pub fn facts(number: usize) -> Result<GpuFacts, DeviceError> {
        Self::find(number).map(|(_, facts)| facts)
    }

    fn find(number: usize) -> Result<(sys::CUdevice, GpuFacts), DeviceError> {
        let count = Self::count()?;
        let ordinal = i32::try_from(number).ok().filter(|_| number < count).ok_or_else(|| {
            let reason = format!("there is no device cuda:{number}, the number of devices is {count}");
            DeviceError::Driver { action: "open a device", reason }
        })?;
        let fail = |error| of_driver("open a device", error);
        let device = result::device::get(ordinal).map_err(fail)?;
        let name = result::device::get_name(device).map_err(fail)?;
        let attribute = |attribute| {
            // SAFETY: the device exists.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(fail)
        };
        let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let architecture = Architecture { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
        // SAFETY: the device exists.
        let total_bytes = unsafe { result::device::total_mem(device) }.map_err(fail)? as u64;
        Ok((device, GpuFacts { name, architecture, total_bytes }))
    }

    /// Opens a device by its number.
    pub fn open(number: usize, compiler: Nvrtc, cache: CubinCache) -> Result<Self, DeviceError> {
        let driver_version = require_driver()?;
        let (device, GpuFacts { name, architecture, .. }) = Self::find(number)?;
        if architecture < Architecture::OLDEST {
            let oldest = Architecture::OLDEST;
            let reason =
                format!("{name} has compute capability {architecture}, the kernels need {oldest} or higher");
            return Err(DeviceError::Driver { action: "open a device", reason });
        }
        let fail = |error| of_driver("open a device", error);
        // SAFETY: the device exists.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(fail)?;
        let opened = (|| {
            // SAFETY: the context was retained above.
            unsafe { result::ctx::set_current(context) }?;
            result::stream::create(result::stream::StreamKind::NonBlocking)
        })();
        let stream = opened.map_err(|error| {
            // SAFETY: retained above, and not used any more. The first error is the one to report.
            let _ = unsafe { result::primary_ctx::release(device) };
            fail(error)
        })?;
        let last_kernel = String::new();
        Ok(Self {
            number,
            name,
            architecture,
            driver_version,
            device,
            context,
            stream,
            compiler,
            cache,
            last_kernel,
        })
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained until `self` is dropped.
        unsafe { result::ctx::set_current(self.context) }
            .map_err(|error| self.classify("enter a context", error))
    }

    /// The kind of an error, by what a caller can do about it.
    fn classify(&self, action: &'static str, error: DriverError) -> DeviceError {
        let reason = describe(error);
        match error.0 {
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_ASSERT => DeviceError::Fault { kernel: self.last_kernel.clone(), reason },
            CUresult::CUDA_ERROR_NO_DEVICE
            | CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            | CUresult::CUDA_ERROR_UNKNOWN => DeviceError::Lost { device: self.name.clone(), reason },
            _ => of_driver(action, error),
        }
    }

    fn machine_code(&self, program: &Program) -> Result<Vec<u8>, DeviceError> {
        let options = Nvrtc::options(self.architecture);
        let key = CubinCache::key(program.source(), &options, self.compiler.version(), self.driver_version);
        self.cache.load_or_compile(&key, || Ok(self.compiler.compile(program, self.architecture)?.cubin))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.enter().is_ok() {
            // SAFETY: both handles are valid and not used any more. There is nothing to do about a failure.
            let _ = unsafe { result::stream::synchronize(self.stream) };
            // SAFETY: as above.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
        // SAFETY: retained when the device was opened.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl Driver for Gpu {
    type Module = GpuModule;

    fn describe(&self) -> String {
        format!("cuda:{} {}", self.number, self.name)
    }

    fn has_tensor_cores(&self) -> bool {
        self.architecture >= Architecture::TENSOR_CORES
    }

    fn memory(&mut self) -> Result<DeviceMemory, DeviceError> {
        self.enter()?;
        let (free, total) =
            result::mem_get_info().map_err(|error| self.classify("report its memory", error))?;
        Ok(DeviceMemory { total_bytes: total as u64, free_bytes: free as u64 })
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError> {
        self.enter()?;
        let full = DeviceError::OutOfMemory { what, wanted_bytes: bytes };
        // The driver refuses empty allocations.
        let Ok(size) = usize::try_from(bytes.max(1)) else { return Err(full) };
        // SAFETY: a context is current.
        match unsafe { result::malloc_sync(size) } {
            Ok(at) => Ok(Address(at)),
            Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(full),
            Err(error) => Err(self.classify("allocate memory", error)),
        }
    }

    unsafe fn free(&mut self, at: Address) -> Result<(), DeviceError> {
        // The driver does not wait for a stream that does not block.
        self.synchronise()?;
        // SAFETY: the caller guarantees that it is allocated and not used any more.
        unsafe { result::free_sync(at.0) }.map_err(|error| self.classify("free memory", error))
    }

    unsafe fn copy_to_device(&mut self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the caller guarantees that the bytes are allocated; `from` lives until the end of the wait.
        unsafe { result::memcpy_htod_async(to.0, from, self.stream) }
            .map_err(|error| self.classify("copy to the device", error))?;
        self.synchronise()
    }

    unsafe fn copy_from_device(&mut self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(to, from.0, self.stream) }
            .map_err(|error| self.classify("copy from the device", error))?;
        self.synchronise()
    }

    unsafe fn copy_within_device(
        &mut self,
        to: Address,
        from: Address,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the caller guarantees that the bytes are allocated.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes as usize, self.stream) }
            .map_err(|error| self.classify("copy within the device", error))
    }

    unsafe fn clear(&mut self, at: Address, bytes: u64) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: as above.
        unsafe { result::memset_d8_async(at.0, 0, bytes as usize, self.stream) }
            .map_err(|error| self.classify("clear memory", error))
    }

    fn load(&mut self, program: &Program) -> Result<GpuModule, DeviceError> {
        self.enter()?;
        let cubin = self.machine_code(program)?;
        // SAFETY: a context is current, and the bytes are a whole cubin: the compiler's, or verified by
        // digest.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) }
            .map_err(|error| self.classify("load a program", error))?;
        let mut functions = HashMap::new();
        for kernel in program.kernels() {
            let name = CString::new(*kernel).unwrap_or_default();
            // SAFETY: the module was loaded above; it is never unloaded.
            let function = unsafe { result::module::get_function(module, name) }
                .map_err(|error| self.classify("find a kernel", error))?;
            functions.insert(*kernel, function);
        }
        Ok(GpuModule { functions })
    }

    unsafe fn launch(
        &mut self,
        module: &GpuModule,
        kernel: &str,
        launch: Launch,
        args: &[u8],
    ) -> Result<(), DeviceError> {
        self.enter()?;
        let Some(function) = module.functions.get(kernel).copied() else {
            let reason = "its program has no such kernel".to_owned();
            return Err(DeviceError::Fault { kernel: kernel.to_owned(), reason });
        };
        kernel.clone_into(&mut self.last_kernel);
        let [x, y, z] = launch.grid;
        // The driver copies the arguments before it returns, and needs them at an aligned address.
        let mut aligned = vec![0u64; args.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut aligned)[..args.len()].copy_from_slice(args);
        let mut parameters = [aligned.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the caller guarantees that these are the kernel's arguments and that they name allocated
        // memory.
        unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (launch.threads, 1, 1),
                0,
                self.stream,
                &mut parameters,
            )
        }
        .map_err(|error| self.classify("launch a kernel", error))
    }

    fn synchronise(&mut self) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the stream exists until `self` is dropped.
        unsafe { result::stream::synchronize(self.stream) }
            .map_err(|error| self.classify("wait for the device", error))
    }
}

fn of_driver(action: &'static str, error: DriverError) -> DeviceError {
    DeviceError::Driver { action, reason: describe(error) }
}

/// The driver's name and text of an error.
fn describe(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| format!("error {}", error.0 as u32), |text| text.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}
