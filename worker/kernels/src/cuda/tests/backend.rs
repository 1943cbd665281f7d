//! The back end on the emulator: the conformance tests of devices, and how failures surface.

use super::super::backend::Cuda;
use super::super::emulator::Emulator;
use super::harness::is_available;
use crate::suite::check_device;

#[test]
fn the_back_end_agrees_with_the_scalar_cpu() {
    if is_available() {
        check_device(|| Cuda::new(Emulator::new()).unwrap());
    }
}
