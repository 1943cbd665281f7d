//! What a test has to say besides pass or fail: a figure for the closing table, or that it could not run.
//! `tests/run` names the two files in LODE_FIGURES and LODE_SKIPS and prints them at the end; any test may add a line.

use std::fs::OpenOptions;
use std::io::Write;

/// Records a measured figure under a name, for instance `("peak memory above idle", "31 MiB")`.
pub fn figure(name: &str, value: &str) {
    append("LODE_FIGURES", &format!("{name}: {value}"));
}

/// Records that a test cannot run here because of `reason`; with CI set that is a failure.
///
/// # Panics
///
/// When CI is set: there a missing client or service is a broken promise, not a circumstance.
pub fn skip(test: &str, reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test}: {reason}, and with CI set nothing may be missing");
    append("LODE_SKIPS", &format!("{test}: {reason}"));
}

/// The number in an environment variable, or a default: how the long form asks for more rounds or bigger blobs.
#[must_use]
pub fn setting(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is a whole number, got `{text}`")),
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
