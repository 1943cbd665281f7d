//! Runs the targets of `model/tests/targets` under libFuzzer; LODE_FUZZ_TARGET selects one.
#![no_main]
#![allow(clippy::unwrap_used, reason = "a test")]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the other harness writes the seeds")]
#[path = "../../tests/targets/mod.rs"]
mod targets;

thread_local! {
    static TARGET: targets::Target = {
        let name = std::env::var("LODE_FUZZ_TARGET").unwrap_or_default();
        let all = targets::all();
        let names: Vec<&str> = all.iter().map(|target| target.name).collect();
        let names = names.join(", ");
        all.into_iter()
            .find(|target| target.name == name)
            .unwrap_or_else(|| panic!("LODE_FUZZ_TARGET is `{name}`, expected one of {names}"))
    };
}

fuzz_target!(|bytes: &[u8]| TARGET.with(|target| (target.check)(bytes)));
