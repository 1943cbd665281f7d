//! What the emulator reports as a fault, and how failures of a device reach the host.
#![allow(unsafe_code)] // Calls the driver.

use super::super::args::RowOp;
use super::super::driver::{Address, Driver};
use super::super::emulator::Emulator;
use super::super::program::Program;
use super::harness::Harness;
use crate::error::DeviceError;

/// Runs kernel `k` with 64 threads over 50 floats. Returns the reason of the fault, if there is one.
fn run(body: &str) -> Option<Result<Vec<f32>, String>> {
    let text = format!("KERNEL(k, RowOp, 64) {{ f32 *x = (f32 *)a.x; u32 i = thread_index(); {body} }}");
    let mut harness = Harness::new(&Program::of_text(&text))?;
    let x = harness.upload(&[1.0f32; 50]);
    let args = RowOp { x: x.0, cols: 50, ..RowOp::default() };
    Some(match harness.try_launch("k", [2, 1, 1], 64, &args) {
        Ok(()) => Ok(harness.read(x, 50)),
        Err(DeviceError::Fault { kernel, reason }) => {
            assert_eq!(kernel, "k");
            // Nothing works on the device after a fault.
            assert!(matches!(harness.device.synchronise(), Err(DeviceError::Fault { .. })));
            assert!(harness.device.allocate("more", 4).is_err());
            Err(reason)
        }
        Err(error) => panic!("{error}"),
    })
}

#[test]
fn invalid_kernels_fail_with_the_reason() {
    for (body, expect) in [
        // The allocation has 200 bytes and 8 bytes of padding before its guard page.
        ("if (i == 63) x[i] = 1;", "byte 252 of an allocation of 200"),
        ("if (i == 0) x[0] = x[-2000];", "access outside of all allocations"),
        ("if (i == 3) x[50] = 1;", "it wrote behind the 200 bytes"),
        ("if (i == 1) x[0] = load_f4(x + 1).x;", "thread 1: a load at a misaligned address"),
        ("if (i < 32) barrier();", "returned before a barrier"),
        ("if (i < 32) { barrier(); }\n else { barrier(); }", "different barriers"),
        ("if (i == 0) x[0] = from_bits(shuffle_xor(ALL_LANES, 0, 1));", "does not exist or has returned"),
        ("x[0] = from_bits(shuffle(1, 0, 0));", "lacks the calling lane"),
        ("if (i % 2) { barrier(); }\n else { shuffle_xor(ALL_LANES, i, 2); }", "wait for each other"),
        ("u32 w[4]; load_matrices(w, x + 1);", "a load at a misaligned address"),
        ("f32 s[4] = {}; u32 w[4] = {}; if (i % 32) multiply_tiles(s, w, w);", "has returned"),
        (
            "f32 s[4] = {}; u32 w[4] = {}; if (i % 2) { multiply_tiles(s, w, w); }\n else { multiply_tiles(s, w, w); }",
            "wait for each other",
        ),
        ("x[0] = (f32)i;", "depends on the order"),
        ("SHARED(f32, s, 64); s[i] = (f32)i; x[i % 32] = s[63 - i];", "depends on the order"),
        ("SHARED(f32, s, 20000); s[i] = 0;", "more than 48 KiB of shared memory"),
        ("SHARED(f32, s, 64); s[i + 1] = 0;", "access outside of all allocations"),
    ] {
        let Some(found) = run(body) else { return };
        let reason = found.expect_err(body);
        assert!(reason.contains(expect), "{body}: {reason}");
    }
}

#[test]
fn valid_kernels_run() {
    for (body, expect) in [
        ("if (i < 50) x[i] = 2;", 2.0),
        ("f32 s = warp_sum(1.0f); if (i < 50) x[i] = s;", 32.0),
        ("if (i < 32) { f32 s = warp_max((f32)i); x[i] = s; if (i < 18) x[32 + i] = s; }", 31.0),
        ("SHARED(f32, s, 64); s[63 - i] = 5; barrier(); if (i < 50) x[i] = s[i];", 5.0),
    ] {
        let Some(found) = run(body) else { return };
        assert_eq!(found.expect(body), [expect; 50], "{body}");
    }
    // Shared memory that is read before it is written is NaN.
    let Some(found) = run("SHARED(f32, s, 64); if (i < 50) x[i] = s[i];") else { return };
    assert!(found.unwrap().iter().all(|v| v.is_nan()));
    // So is what is just in front of an allocation, in the page of its start.
    let Some(found) = run("if (i == 0) x[0] = x[-1];") else { return };
    assert!(found.unwrap()[0].is_nan());
}

#[test]
fn launches_outside_of_the_limits_fail() {
    for (kernel, grid, threads, expect) in [
        ("k", [1, 65_536, 1], 64, "is outside of"),
        ("k", [0, 1, 1], 64, "is outside of"),
        ("k", [1, 1, 1], 32, "expected 64 threads"),
        ("other", [1, 1, 1], 64, "no such kernel"),
    ] {
        let Some(mut harness) = Harness::new(&Program::of_text("KERNEL(k, RowOp, 64) { (void)a; }")) else {
            return;
        };
        let error = harness.try_launch(kernel, grid, threads, &RowOp::default()).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
    let Some(mut harness) = Harness::new(&Program::of_text("KERNEL(k, RowOp, 64) { (void)a; }")) else {
        return;
    };
    let error = harness.try_launch("k", [1, 1, 1], 64, &1u64).unwrap_err().to_string();
    assert!(error.contains("bytes of arguments, got 8"), "{error}");
}

#[test]
fn failures_of_the_device_are_told_apart() {
    let program = Program::of_text("KERNEL(k, RowOp, 64) { (void)a; }");
    let Some(mut harness) = Harness::new(&program) else { return };
    let lost = DeviceError::Lost { device: "emulator".to_owned(), reason: "unplugged".to_owned() };
    harness.device.plan_failure(lost.clone());
    assert_eq!(harness.try_launch("k", [1, 1, 1], 64, &RowOp::default()), Err(lost.clone()));
    let mut byte = [0];
    // SAFETY: the device has failed, so nothing is copied.
    assert_eq!(unsafe { harness.device.copy_from_device(&mut byte, Address(0)) }, Err(lost));
    let launches = harness.device.launches();
    assert!(launches.lock().unwrap().iter().map(|(kernel, _)| kernel).eq(["k"]));

    let mut device = Emulator::with_memory(1000);
    let first = device.allocate("a", 600).unwrap();
    assert_eq!(
        device.allocate("the second", 500),
        Err(DeviceError::OutOfMemory { what: "the second", wanted_bytes: 500 })
    );
    // SAFETY: allocated above and not used.
    unsafe { device.free(first) }.unwrap();
    assert!(device.allocate("b", 1000).is_ok());
    let error = device.load(&Program::of_text("KERNEL(k, RowOp, 64) { nonsense; }")).err().unwrap();
    assert!(matches!(&error, DeviceError::Compile { reason, .. } if reason.contains("nonsense")), "{error}");
}
