//! A device that executes the kernels on the host, for tests. g++ compiles the same sources with other
//! versions of the primitives (`emulator.h`); `emulator.cpp` runs them. See
//! docs/adr/0013-cuda-driver-seam.md.
//!
//! What a GPU leaves undefined is an error here: accesses outside of allocations, misaligned loads, divergent
//! barriers and exchanges, and results that depend on the order of threads.
#![allow(unsafe_code)] // Loads a shared object and calls it.

mod compile;

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex, OnceLock};

use libloading::{Library, Symbol};

pub(super) use compile::{Compiler, compiler};

// The tests of the worker include this file, too: everything of this crate comes from the parent module.
use super::{Address, DeviceError, DeviceMemory, Driver, Launch, Program};

type KernelFn = unsafe extern "C" fn(*const c_void);
type LaunchFn = unsafe extern "C" fn(
    kernel: KernelFn,
    args: *const c_void,
    grid: *const u32,
    threads: u32,
    seed: u64,
    workers: u32,
    reason: *mut c_char,
    reason_bytes: u64,
) -> i32;

/// The bytes between the end of an allocation and its guard page.
const CANARY: u8 = 0xa5;
/// The content of new memory: NaN as a float.
const POISON: u8 = 0xff;
const ALIGN: u64 = 16;
/// Limits of CUDA for a grid.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_THREADS: u32 = 1024;
/// The size of a kernel's arguments that every device supports.
const MAX_ARGUMENTS: usize = 4096;

/// The kernels that were launched, and their arguments. It stays in use after the device was given away.
pub(super) type Launches = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

pub(super) struct Emulator {
    allocations: BTreeMap<u64, u64>,
    memory_bytes: u64,
    used_bytes: u64,
    has_tensor_cores: bool,
    launches: Launches,
    /// The first failure of queued work. As on a GPU, nothing works after it.
    failure: Option<DeviceError>,
    planned: Option<DeviceError>,
}

/// A loaded shared object.
pub(super) struct Module {
    program: String,
    library: Arc<Library>,
}

impl Emulator {
    pub(super) fn new() -> Self {
        Self::with_memory(1 << 30)
    }

    /// A device with this much memory.
    pub(super) fn with_memory(memory_bytes: u64) -> Self {
        let (allocations, launches) = Default::default();
        Self {
            allocations,
            memory_bytes,
            used_bytes: 0,
            has_tensor_cores: false,
            launches,
            failure: None,
            planned: None,
        }
    }

    /// A device with tensor cores. Those of [`new`](Self::new) have none, so that their results are exact to float32.
    pub(super) fn with_tensor_cores() -> Self {
        let mut device = Self::new();
        device.has_tensor_cores = true;
        device
    }

    /// Makes the next launch fail with `error`.
    pub(super) fn plan_failure(&mut self, error: DeviceError) {
        self.planned = Some(error);
    }

    pub(super) fn launches(&self) -> Launches {
        self.launches.clone()
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// # Panics
    /// If the bytes are not allocated: the host's own copies are not the kernels' fault.
    fn require(&self, at: Address, bytes: u64) {
        let found = self.allocations.range(..=at.0).next_back();
        let is_inside = found.is_some_and(|(start, size)| at.0 + bytes <= start + size);
        assert!(is_inside, "{bytes} bytes at {:#x} are not allocated", at.0);
    }

    fn bytes_of(&self, at: u64, bytes: u64) -> &[u8] {
        // SAFETY: an entry of `allocations` with its padding is mapped until it is freed.
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes as usize) }
    }

    fn snapshot(&self) -> Vec<Vec<u8>> {
        self.allocations.iter().map(|(at, bytes)| self.bytes_of(*at, *bytes).to_vec()).collect()
    }

    fn restore(&mut self, snapshot: &[Vec<u8>]) {
        for (at, content) in self.allocations.keys().zip(snapshot) {
            // SAFETY: the snapshot has the sizes of the allocations, which did not change since.
            unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), *at as *mut u8, content.len()) };
        }
    }

    /// Runs a kernel twice with other orders of blocks and threads, and compares all memory.
    fn execute(
        &mut self,
        module: &Module,
        kernel: &str,
        launch: Launch,
        args: &[u8],
    ) -> Result<(), DeviceError> {
        let fault = |reason: String| DeviceError::Fault { kernel: kernel.to_owned(), reason };
        // SAFETY: the macro KERNEL declares these three symbols for each kernel.
        let (entry, threads, size) = unsafe {
            let entry: Symbol<'_, KernelFn> = module
                .library
                .get(kernel.as_bytes())
                .map_err(|_| fault(format!("the program `{}` has no such kernel", module.program)))?;
            let number = |suffix: &str| {
                let symbol: Symbol<'_, *const u32> =
                    module.library.get(format!("{kernel}_{suffix}").as_bytes()).unwrap();
                **symbol
            };
            (*entry, number("threads"), number("bytes"))
        };
        if args.len() != size as usize || args.len() > MAX_ARGUMENTS {
            return Err(fault(format!("expected {size} bytes of arguments, got {}", args.len())));
        }
        if launch.threads != threads || threads > MAX_THREADS {
            return Err(fault(format!("expected {threads} threads per block, got {}", launch.threads)));
        }
        if launch.grid.iter().zip(MAX_GRID).any(|(n, max)| *n == 0 || *n > max) {
            return Err(fault(format!("the grid {:?} is outside of {MAX_GRID:?}", launch.grid)));
        }
        let mut aligned = vec![0u128; args.len().div_ceil(16)];
        bytemuck::cast_slice_mut(&mut aligned)[..args.len()].copy_from_slice(args);
        let blocks: u64 = launch.grid.iter().map(|n| u64::from(*n)).product();
        let run = |seed| {
            let mut reason = [0u8; 512];
            // SAFETY: the runtime's function; the kernel gets the arguments that it declares, and catches its
            // own invalid accesses.
            let status = unsafe {
                (runtime().launch)(
                    entry,
                    aligned.as_ptr().cast(),
                    launch.grid.as_ptr(),
                    threads,
                    seed,
                    blocks.min(2) as u32,
                    reason.as_mut_ptr().cast(),
                    reason.len() as u64,
                )
            };
            let text = CStr::from_bytes_until_nul(&reason).unwrap_or_default();
            if status == 0 { Ok(()) } else { Err(text.to_string_lossy().into_owned()) }
        };
        let before = self.snapshot();
        run(0).map_err(|reason| fault(self.locate(reason)))?;
        let first = self.snapshot();
        self.restore(&before);
        run(1).map_err(|reason| fault(self.locate(reason)))?;
        for ((at, bytes), first) in self.allocations.iter().zip(&first) {
            if self.bytes_of(*at, *bytes) != first.as_slice() {
                return Err(fault("its result depends on the order of blocks or threads".to_owned()));
            }
            let padding = self.bytes_of(at + bytes, bytes.next_multiple_of(ALIGN) - bytes);
            if padding.iter().any(|byte| *byte != CANARY) {
                return Err(fault(format!("it wrote behind the {bytes} bytes at {at:#x}")));
            }
        }
        Ok(())
    }

    /// Adds the nearest allocation to a reason that ends with an address.
    fn locate(&self, reason: String) -> String {
        let address = reason.rsplit_once("0x").and_then(|(_, hex)| u64::from_str_radix(hex, 16).ok());
        let Some(address) = address else { return reason };
        let below = self.allocations.range(..=address).next_back();
        match below.filter(|(at, bytes)| address - *at < **bytes + (1 << 20)) {
            Some((at, bytes)) => format!("{reason}: byte {} of an allocation of {bytes}", address - at),
            None => reason,
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        for (at, bytes) in &self.allocations {
            // SAFETY: each entry was allocated by this function's counterpart.
            unsafe { (runtime().free)(*at as *mut c_void, *bytes) };
        }
    }
}

impl Driver for Emulator {
    type Module = Module;

    fn describe(&self) -> String {
        "emulator".to_owned()
    }

    fn has_tensor_cores(&self) -> bool {
        self.has_tensor_cores
    }

    fn memory(&mut self) -> Result<DeviceMemory, DeviceError> {
        self.check()?;
        let free_bytes = self.memory_bytes - self.used_bytes;
        Ok(DeviceMemory { total_bytes: self.memory_bytes, free_bytes })
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError> {
        self.check()?;
        let full = DeviceError::OutOfMemory { what, wanted_bytes: bytes };
        if bytes > self.memory_bytes - self.used_bytes {
            return Err(full);
        }
        // SAFETY: the runtime's function has no conditions.
        let at = unsafe { (runtime().allocate)(bytes) } as u64;
        if at == 0 {
            return Err(full);
        }
        self.used_bytes += bytes;
        self.allocations.insert(at, bytes);
        // SAFETY: the bytes and their padding are mapped.
        unsafe {
            std::ptr::write_bytes(at as *mut u8, POISON, bytes as usize);
            let padding = bytes.next_multiple_of(ALIGN) - bytes;
            std::ptr::write_bytes((at + bytes) as *mut u8, CANARY, padding as usize);
        }
        Ok(Address(at))
    }

    unsafe fn free(&mut self, at: Address) -> Result<(), DeviceError> {
        let bytes = self.allocations.remove(&at.0).expect("freed memory was allocated");
        self.used_bytes -= bytes;
        // SAFETY: allocated by this function's counterpart, and no longer in the table.
        unsafe { (runtime().free)(at.0 as *mut c_void, bytes) };
        self.check()
    }

    unsafe fn copy_to_device(&mut self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        self.require(to, from.len() as u64);
        // SAFETY: `require` checked that the bytes are allocated.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
        self.check()
    }

    unsafe fn copy_from_device(&mut self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        self.check()?;
        self.require(from, to.len() as u64);
        to.copy_from_slice(self.bytes_of(from.0, to.len() as u64));
        Ok(())
    }

    unsafe fn copy_within_device(
        &mut self,
        to: Address,
        from: Address,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.require(to, bytes);
        self.require(from, bytes);
        assert!(to.0.abs_diff(from.0) >= bytes, "a copy whose two places overlap");
        // SAFETY: checked just above.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.0 as *mut u8, bytes as usize) };
        self.check()
    }

    unsafe fn clear(&mut self, at: Address, bytes: u64) -> Result<(), DeviceError> {
        self.require(at, bytes);
        // SAFETY: `require` checked that the bytes are allocated.
        unsafe { std::ptr::write_bytes(at.0 as *mut u8, 0, bytes as usize) };
        self.check()
    }

    fn load(&mut self, program: &Program) -> Result<Module, DeviceError> {
        self.check()?;
        let library = compile::load(program)?;
        Ok(Module { program: program.name().to_owned(), library })
    }

    unsafe fn launch(
        &mut self,
        module: &Module,
        kernel: &str,
        launch: Launch,
        args: &[u8],
    ) -> Result<(), DeviceError> {
        self.check()?;
        self.launches.lock().unwrap().push((kernel.to_owned(), args.to_vec()));
        // As on a GPU, the failure is reported when the host waits.
        let result = match self.planned.take() {
            Some(error) => Err(error),
            None => self.execute(module, kernel, launch, args),
        };
        self.failure = result.err();
        Ok(())
    }

    fn synchronise(&mut self) -> Result<(), DeviceError> {
        self.check()
    }
}

/// The functions of emulator.cpp.
struct Runtime {
    launch: LaunchFn,
    allocate: unsafe extern "C" fn(u64) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, u64),
    functions: *const c_void,
}

// SAFETY: the pointer is to a constant.
unsafe impl Sync for Runtime {}
// SAFETY: as above.
unsafe impl Send for Runtime {}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let library = Box::leak(Box::new(compile::runtime_library()));
        // SAFETY: emulator.cpp defines these functions with these types. The library is never unloaded.
        unsafe {
            let functions: Symbol<'_, unsafe extern "C" fn() -> *const c_void> =
                library.get(b"lode_emulator_functions").unwrap();
            Runtime {
                launch: *library.get(b"lode_emulator_launch").unwrap(),
                allocate: *library.get(b"lode_emulator_allocate").unwrap(),
                free: *library.get(b"lode_emulator_free").unwrap(),
                functions: functions(),
            }
        }
    })
}
