//! Compiled programs on disk. Compiling takes seconds per program, so each is compiled once per device type
//! and version of the libraries.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use lode_model::digest::Digest;

/// The first bytes of a file; the number is that of the layout: the key, a SHA-256 digest in hexadecimal, then the
/// machine code that it is of.
const MAGIC: &[u8] = b"lode-cubin-2\n";
const DIGEST_LEN: usize = 64;
/// Names of temporary files that are tried. A process that was killed leaves one, and containers have the same
/// process ids.
const MAX_TEMPORARY_FILES: u32 = 16;
/// Larger files are not ours.
const MAX_BYTES: u64 = 256 << 20;

/// A folder of compiled programs. Any number of processes may use it.
#[derive(Clone, Debug)]
pub struct CubinCache {
    /// `None`: nothing is stored.
    folder: Option<PathBuf>,
}

impl CubinCache {
    /// Uses a folder, which is created when the first program is stored.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// A cache that stores nothing.
    pub fn disabled() -> Self {
        Self { folder: None }
    }

    /// The key of a program: a digest of all that decides about the machine code.
    pub fn key(source: &str, options: &[String], nvrtc: (i32, i32), driver: i32) -> String {
        let versions = format!("nvrtc {}.{}, driver {driver}", nvrtc.0, nvrtc.1);
        // Lengths separate the parts.
        let parts = options.iter().map(String::as_str).chain([versions.as_str(), source]);
        let text: String = parts.map(|part| format!("{}\n{part}\n", part.len())).collect();
        Digest::sha256(text.as_bytes()).hex().to_owned()
    }

    /// Returns the stored program of a key, or compiles and stores it. If it cannot be stored, the log has the reason,
    /// and the next start compiles it again.
    pub fn load_or_compile<E>(
        &self,
        key: &str,
        compile: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        if let Some(cubin) = self.load(key) {
            return Ok(cubin);
        }
        let cubin = compile()?;
        if let Err(error) = self.store(key, &cubin) {
            let folder = self.folder.as_deref().unwrap_or(Path::new("")).display();
            tracing::warn!(%folder, %error, "failed to store a compiled kernel; it will be compiled at each start");
        }
        Ok(cubin)
    }

    /// Returns a stored program. A file that is damaged, truncated, of another layout or of another key counts as
    /// absent, and is replaced by the next [`store`](Self::store).
    pub fn load(&self, key: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(key)?).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        let rest = bytes.strip_prefix(MAGIC)?.strip_prefix(key.as_bytes())?;
        let (digest, cubin) = rest.split_at_checked(DIGEST_LEN)?;
        (Digest::sha256(cubin).hex().as_bytes() == digest).then(|| cubin.to_vec())
    }

    /// Stores a program: the file appears complete or not at all.
    pub fn store(&self, key: &str, cubin: &[u8]) -> io::Result<()> {
        let (Some(folder), Some(path)) = (&self.folder, self.path(key)) else { return Ok(()) };
        fs::create_dir_all(folder)?;
        let (temporary, file) = create_temporary(folder, key)?;
        let written = write(file, key, cubin).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.cubin")))
    }
}

/// Creates a file that no other thread or process writes.
fn create_temporary(folder: &Path, key: &str) -> io::Result<(PathBuf, File)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut tried = 0;
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".{key}-{}-{count}", std::process::id()));
        tried += 1;
        match File::create_new(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < MAX_TEMPORARY_FILES => {}
            Err(error) => return Err(error),
        }
    }
}

fn write(mut file: File, key: &str, cubin: &[u8]) -> io::Result<()> {
    file.write_all(MAGIC)?;
    file.write_all(key.as_bytes())?;
    file.write_all(Digest::sha256(cubin).hex().as_bytes())?;
    file.write_all(cubin)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

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

    const CODE: &[u8] = &[7; 1000];

    /// Whether a cache compiles the program of a key. What it returns is the right program in any case.
    fn compiles(cache: &CubinCache, key: &str) -> bool {
        let mut compiled = false;
        let compile = || {
            compiled = true;
            Ok::<_, ()>(CODE.to_vec())
        };
        assert_eq!(cache.load_or_compile(key, compile).unwrap(), CODE);
        compiled
    }

    /// The only file of a folder.
    fn only_file(folder: &Path) -> PathBuf {
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "no temporary files stay: {files:?}");
        files[0].clone()
    }

    #[test]
    fn damaged_files_are_compiled_again_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let cache = CubinCache::new(&folder);
        let key = key("a", "b", (12, 9), 12_080);
        assert!(compiles(&cache, &key));
        assert!(!compiles(&cache, &key));

        let path = only_file(&folder);
        let whole = fs::read(&path).unwrap();
        let header = MAGIC.len() + key.len();
        let cut = |len: usize| whole[..len].to_vec();
        let changed = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        let damaged = [0, 1, MAGIC.len(), header, header + DIGEST_LEN - 1, whole.len() - 1].map(cut);
        let damaged = damaged.into_iter().chain([0, MAGIC.len(), header, whole.len() - 1].map(changed));
        for (case, bytes) in damaged.chain([[whole.as_slice(), b"x"].concat()]).enumerate() {
            fs::write(&path, bytes).unwrap();
            assert!(compiles(&cache, &key), "case {case}");
            assert_eq!(fs::read(only_file(&folder)).unwrap(), whole, "case {case}");
        }
        // A folder in place of the file cannot be replaced, but is no program either.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(compiles(&cache, &key));
    }

    /// A file that was copied to the name of another program is whole, but is not that program.
    #[test]
    fn a_file_of_another_key_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        let (key, other) = (key("a", "b", (12, 9), 12_080), key("a", "b", (12, 9), 12_090));
        cache.store(&other, &[1]).unwrap();
        fs::rename(only_file(folder.path()), folder.path().join(format!("{key}.cubin"))).unwrap();
        assert!(compiles(&cache, &key));
        assert_eq!(cache.load(&key).as_deref(), Some(CODE));
    }

    #[test]
    fn programs_run_without_a_folder_that_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let cache = CubinCache::new(&file);
        assert!(cache.store("key", &[1]).is_err());
        let none = CubinCache::disabled();
        none.store("key", &[1]).unwrap();
        for cache in [cache, none] {
            assert_eq!(cache.load("key"), None);
            assert!(compiles(&cache, "key"));
            assert!(compiles(&cache, "key"));
        }
    }

    #[test]
    fn a_failed_compilation_stores_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        assert_eq!(cache.load_or_compile("key", || Err("reason")), Err("reason"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// A killed process leaves a temporary file; a later process with its id uses another name.
    #[test]
    fn temporary_files_of_killed_processes_do_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        for count in 0..3 {
            // The numbers that this process uses next, unless other tests use some of them.
            fs::write(folder.path().join(format!(".key-{}-{count}", std::process::id())), "part").unwrap();
        }
        assert!(compiles(&cache, "key"));
        assert!(!compiles(&cache, "key"));
    }

    const FOLDER: &str = "LODE_TEST_CUBIN_FOLDER";

    /// Several processes load, store and remove the same programs. Each gets the program of its key.
    #[test]
    fn processes_share_a_folder() {
        let program = |key: usize| vec![key as u8; 50_000 + key];
        if let Some(folder) = std::env::var_os(FOLDER) {
            let cache = CubinCache::new(&folder);
            for round in 0..200 {
                let number = round % 5;
                let key = key(&number.to_string(), "b", (12, 9), 12_080);
                let found = cache.load_or_compile(&key, || Ok::<_, ()>(program(number))).unwrap();
                assert!(found == program(number), "round {round}");
                if round % 7 == 0 {
                    // Another process may have removed it.
                    let _ = fs::remove_file(Path::new(&folder).join(format!("{key}.cubin")));
                }
            }
            return;
        }
        let this_program = || std::process::Command::new(std::env::current_exe().unwrap());
        let listed = this_program().arg("--list").stdout(std::process::Stdio::null()).status();
        if !listed.is_ok_and(|status| status.success()) {
            report::skip_optional(&report::current_test(), "under QEMU, it cannot start itself");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let children = [(); 3].map(|()| {
            let mut command = this_program();
            command.args(["--exact", "cuda::cubin_cache::tests::processes_share_a_folder"]);
            command.env(FOLDER, folder.path()).stdout(std::process::Stdio::null());
            command.spawn().unwrap()
        });
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        assert!(files.into_iter().all(|path| path.extension().is_some_and(|extension| extension == "cubin")));
    }
}
