//! Compiled programs on disk. Compiling takes seconds per program, so each is compiled once per device type
//! and version of the libraries.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use lode_model::digest::Digest;

/// The first bytes of a file; the number is that of the layout: a SHA-256 digest in hexadecimal, then the
/// machine code that it is of.
const MAGIC: &[u8] = b"lode-cubin-1\n";
const DIGEST_LEN: usize = 64;
/// Larger files are not ours.
const MAX_BYTES: u64 = 256 << 20;

/// A folder of compiled programs. Any number of processes may use it.
#[derive(Clone, Debug)]
pub struct CubinCache {
    folder: PathBuf,
}

impl CubinCache {
    /// Uses a folder, which is created when the first program is stored.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The key of a program: a digest of all that decides about the machine code.
    pub fn key(source: &str, options: &[String], nvrtc: (i32, i32), driver: i32) -> String {
        let versions = format!("nvrtc {}.{}, driver {driver}", nvrtc.0, nvrtc.1);
        // Lengths separate the parts.
        let parts = options.iter().map(String::as_str).chain([versions.as_str(), source]);
        let text: String = parts.map(|part| format!("{}\n{part}\n", part.len())).collect();
        Digest::sha256(text.as_bytes()).hex().to_owned()
    }

    /// Returns a stored program. A file that is damaged, truncated or of another layout counts as absent, and
    /// is replaced by the next [`store`](Self::store).
    pub fn load(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(key)).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?;
        let (digest, cubin) = rest.split_at_checked(DIGEST_LEN)?;
        (Digest::sha256(cubin).hex().as_bytes() == digest).then(|| cubin.to_vec())
    }

    /// Stores a program: the file appears complete or not at all.
    pub fn store(&self, key: &str, cubin: &[u8]) -> io::Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(&self.folder)?;
        let unique = format!(".{key}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let temporary = self.folder.join(unique);
        let written = write(&temporary, cubin).and_then(|()| fs::rename(&temporary, self.path(key)));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cubin"))
    }
}

fn write(path: &Path, cubin: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(MAGIC)?;
    file.write_all(Digest::sha256(cubin).hex().as_bytes())?;
    file.write_all(cubin)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(source: &str, option: &str, nvrtc: (i32, i32), driver: i32) -> String {
        CubinCache::key(source, &[option.to_owned()], nvrtc, driver)
    }

    #[test]
    fn everything_that_changes_the_code_changes_the_key() {
        let keys = [
            key("a", "b", (12, 9), 12_080),
            key("ab", "b", (12, 9), 12_080),
            key("a", "bb", (12, 9), 12_080),
            key("a", "b", (12, 8), 12_080),
            key("a", "b", (12, 9), 12_090),
            CubinCache::key("a", &["b".to_owned(), String::new()], (12, 9), 12_080),
        ];
        for (i, key) in keys.iter().enumerate() {
            assert!(!keys[..i].contains(key), "{i}");
        }
        assert_eq!(keys[0], key("a", "b", (12, 9), 12_080));
    }

    #[test]
    fn damaged_files_are_absent_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path().join("new"));
        let key = key("a", "b", (12, 9), 12_080);
        assert_eq!(cache.load(&key), None);
        let cubin = vec![7; 1000];
        cache.store(&key, &cubin).unwrap();
        assert_eq!(cache.load(&key), Some(cubin.clone()));
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "no temporary files stay");

        let whole = fs::read(cache.path(&key)).unwrap();
        for len in [0, 1, MAGIC.len(), MAGIC.len() + DIGEST_LEN - 1, whole.len() - 1] {
            fs::write(cache.path(&key), &whole[..len]).unwrap();
            assert_eq!(cache.load(&key), None, "cut to {len}");
        }
        for at in [0, MAGIC.len(), MAGIC.len() + DIGEST_LEN, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(cache.path(&key), &damaged).unwrap();
            assert_eq!(cache.load(&key), None, "changed at {at}");
        }
        cache.store(&key, &cubin).unwrap();
        assert_eq!(cache.load(&key), Some(cubin));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = CubinCache::new(&file);
        assert!(cache.store("key", &[1]).is_err());
        assert_eq!(cache.load("key"), None);
    }
}
