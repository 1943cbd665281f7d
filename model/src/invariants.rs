//! Tests the first invariant of docs/ARCHITECTURE.md: this crate does no I/O, does not block, and has few
//! dependencies.

use std::fs;
use std::path::{Path, PathBuf};

/// All permitted entries of `[dependencies]`: values, formats, hashes, and schemas of values (ADR 0017).
const DEPENDENCIES: [&str; 10] = [
    "base64",
    "blake3",
    "half",
    "lz4_flex",
    "safetensors",
    "serde",
    "serde_json",
    "sha2",
    "thiserror",
    "utoipa",
];

/// Text that only occurs in code that does I/O, waits or reads the clock.
const FORBIDDEN: [&str; 7] =
    ["std::fs", "std::net::Tcp", "std::process", "std::thread", "std::time", "tokio", "async fn"];

/// These tests may read fixtures.
const TEST_FILES: [&str; 3] = ["golden.rs", "tests.rs", "invariants.rs"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn does_no_io() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 10);
    for path in files.iter().filter(|path| !TEST_FILES.iter().any(|name| path.ends_with(name))) {
        let text = fs::read_to_string(path).expect("a source file");
        for forbidden in FORBIDDEN {
            assert!(!text.contains(forbidden), "{} has `{forbidden}`", path.display());
        }
    }
}

#[test]
fn depends_on_little() {
    let manifest =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).expect("Cargo.toml");
    let (_, rest) = manifest.split_once("[dependencies]\n").expect("dependencies");
    let section = rest.split_once("\n[").map_or(rest, |(section, _)| section);
    let names: Vec<&str> = section
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|n| !n.is_empty())
        .collect();
    assert_eq!(names, DEPENDENCIES);
}
