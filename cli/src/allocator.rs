//! The memory allocator of every process: jemalloc, which returns freed memory to the system after ten
//! seconds.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Returns freed memory also while the process is idle, from a thread of jemalloc's. For long-running
/// processes only.
pub(crate) fn release_when_idle() {
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        tracing::warn!(%error, "freed memory is returned to the system only while the process is busy");
    }
}
