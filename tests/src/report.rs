//! Test results other than pass or fail: measured figures and skips.
//! Tests append lines to the files in LODE_FIGURES and LODE_SKIPS, and `tests/run` prints both at the end.
//! The crates of the program include this file in their unit tests.

use std::fs::OpenOptions;
use std::io::Write;

/// Records a measured figure, for instance `("peak memory above idle", "31 MiB")`.
pub fn figure(name: &str, value: &str) {
    append("LODE_FIGURES", &format!("{name}: {value}"));
}

/// Records that a test, or a part of it, cannot run because a service or a client is missing.
///
/// # Panics
///
/// If CI is set: CI must provide every client and service.
pub fn skip(test: &str, reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test}: {reason}; skips are failures because CI is set");
    skip_optional(test, reason);
}

/// Records that a test, or a part of it, cannot run on this machine because of something that CI does not
/// provide either: a processor feature, or data that is not in the repository.
pub fn skip_optional(test: &str, reason: &str) {
    append("LODE_SKIPS", &format!("{test}: {reason}"));
}

/// The crate and the name of the test that runs on this thread.
#[must_use]
pub fn current_test() -> String {
    let thread = std::thread::current();
    format!("{} {}", env!("CARGO_PKG_NAME"), thread.name().unwrap_or("(a thread of a test)"))
}

/// The number in an environment variable, or a default. `tests/run --long` sets more rounds and bigger blobs
/// this way.
#[must_use]
pub fn env_number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => {
            text.parse().unwrap_or_else(|_| panic!("{variable}: expected a whole number, got `{text}`"))
        }
        Err(_) => default,
    }
}

fn append(variable: &str, line: &str) {
    let line = format!("{line}\n");
    let written = match std::env::var_os(variable) {
        Some(path) => OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut f| f.write_all(line.as_bytes())),
        None => std::io::stderr().write_all(line.as_bytes()),
    };
    written.expect("the report can be written");
}
