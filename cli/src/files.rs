//! Local files: walked, read at offsets, and written atomically.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use lode_client::{Content, Destination, OpenFolder};
use lode_model::{files_view::MAX_FOLDERS, gguf::PartName, onnx, read_at::ReadAt};

use crate::error::{Failure, Outcome};

/// A regular file in a named folder.
#[derive(Debug, Clone)]
pub(crate) struct LocalFile {
    /// Path relative to the folder, with `/` as separator.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
}

/// Lists all regular files below `folder`, sorted by name in byte order. Follows links and skips `.git`.
pub(crate) fn walk(folder: &Path) -> Outcome<Vec<LocalFile>> {
    let mut found = Vec::new();
    walk_into(folder, "", 0, &mut found)?;
    found.sort_by(|a: &LocalFile, b: &LocalFile| a.name.cmp(&b.name));
    Ok(found)
}

fn walk_into(folder: &Path, below: &str, depth: usize, found: &mut Vec<LocalFile>) -> Outcome {
    let failed = |path: &Path, error: io::Error| {
        Failure::with_source(format!("cannot read {}", path.display()), &error)
    };
    if depth > MAX_FOLDERS {
        return Err(Failure::new(format!(
            "{} is nested more than {MAX_FOLDERS} folders deep",
            folder.display()
        ))
        .hint("does a link point to a parent folder?"));
    }
    for entry in fs::read_dir(folder).map_err(|error| failed(folder, error))? {
        let entry = entry.map_err(|error| failed(folder, error))?;
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| {
            Failure::new(format!("{} has a name that is not UTF-8", path.display())).hint("rename it")
        })?;
        let name = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
        let metadata = fs::metadata(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if path.is_symlink() => {
                Failure::new(format!("{} is a broken link", path.display()))
                    .hint("is the download complete? Remove the link or restore its target")
            }
            _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
                failed(&path, error).hint("does a link point to a parent folder?")
            }
            _ => failed(&path, error),
        })?;
        if metadata.is_dir() {
            if entry.file_name() != ".git" {
                walk_into(&path, &name, depth + 1, found)?;
            }
        } else if metadata.is_file() {
            found.push(LocalFile { name, path, size: metadata.len() });
        }
    }
    Ok(())
}

/// A weights file and the other files of the same model in its folder: the other parts of a split GGUF, and
/// the data files that an ONNX file names. Sorted by name in byte order. Missing files are left for the
/// import to report.
pub(crate) fn find_companions(path: &Path) -> Outcome<Vec<LocalFile>> {
    let failed = |error: io::Error| Failure::with_source(format!("cannot read {}", path.display()), &error);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut names = vec![name.to_owned()];
    if let Some(part) = PartName::parse(name) {
        names.extend((1..=part.count).filter(|number| *number != part.number).map(|n| part.sibling(n)));
    } else if name.to_ascii_lowercase().ends_with(".onnx") {
        // The import reports an invalid file with a better message.
        if let Ok(model) = onnx::Model::read(&DiskFile::open(path).map_err(failed)?) {
            names.extend(
                model.locations().into_iter().map(|location| onnx::Model::resolve_location(name, location)),
            );
        }
    }
    names.sort_unstable();
    names.dedup();
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut found = Vec::new();
    for name in names {
        // Names in the file are untrusted.
        let path = join_below(folder, &name)?;
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => found.push(LocalFile { name, path, size: metadata.len() }),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(found)
}

/// An open file for reads at offsets.
pub(crate) struct DiskFile {
    file: File,
    size: u64,
}

impl DiskFile {
    pub(crate) fn open(path: &Path) -> io::Result<DiskFile> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok(DiskFile { file, size })
    }
}

impl ReadAt for DiskFile {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), "the file became shorter while it was read")
            }
            _ => error,
        })
    }
}

/// A file that is opened only when it is uploaded: a folder may contain more files than a process may open.
pub(crate) struct FileContent {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
}

impl Content for FileContent {
    fn size(&self) -> u64 {
        self.size
    }

    fn reader(&self, offset: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Box::new(file))
    }
}

/// Joins `name` to `folder` and refuses names that leave it: layer titles are untrusted.
pub(crate) fn join_below(folder: &Path, name: &str) -> Outcome<PathBuf> {
    let refused = |why: String| Failure::new(format!("the file name `{}` {why}", name.escape_debug()));
    let mut path = folder.to_owned();
    let mut parts = 0;
    for component in Path::new(name).components() {
        match component {
            Component::Normal(part) => {
                path.push(part);
                parts += 1;
            }
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(refused("leads outside the folder".into()));
            }
        }
        // The last part is the file.
        if parts > MAX_FOLDERS + 1 {
            return Err(refused(format!("has more than {MAX_FOLDERS} folders")));
        }
    }
    if parts == 0 || name.contains('\0') {
        return Err(refused("is not a valid path".into()));
    }
    Ok(path)
}

/// The path of a file while it is being written.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// Creates files below one folder. Links below the folder are not followed.
pub(crate) struct Destinations {
    root: OpenFolder,
    open: HashMap<PathBuf, OpenFolder>,
}

impl Destinations {
    /// Creates the folder if it is missing. Links in its own path are followed: the user chose it.
    pub(crate) fn create(folder: &Path) -> Outcome<Destinations> {
        let failed =
            |error: io::Error| Failure::with_source(format!("cannot create {}", folder.display()), &error);
        fs::create_dir_all(folder).map_err(failed)?;
        Ok(Destinations { root: OpenFolder::open(folder).map_err(failed)?, open: HashMap::new() })
    }

    pub(crate) fn root(&self) -> &OpenFolder {
        &self.root
    }

    /// The destination for `name` below the folder. Creates the folders in between.
    pub(crate) fn file(&mut self, name: &str) -> Outcome<Destination> {
        let path = join_below(Path::new(""), name)?;
        let parent = path.parent().unwrap_or(Path::new("")).to_owned();
        let file = path.file_name().unwrap_or_default().to_owned();
        let folder = match self.open.get(&parent) {
            Some(folder) => folder.clone(),
            None => {
                let folder = self.root.create_below(&parent).map_err(|error| {
                    let shown = self.root.path().join(&parent);
                    Failure::with_source(format!("cannot create {}", shown.display()), &error)
                })?;
                self.open.entry(parent).or_insert(folder).clone()
            }
        };
        Ok(folder.file(file))
    }
}

/// Renames a synced file and syncs its folder.
pub(crate) fn rename(part: &Path, path: &Path) -> Outcome {
    let failed = |error: io::Error| Failure::with_source(format!("cannot write {}", path.display()), &error);
    fs::rename(part, path).map_err(failed)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

pub(crate) fn create_folder_of(path: &Path) -> Outcome {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::create_dir_all(folder)
            .map_err(|error| Failure::with_source(format!("cannot create {}", folder.display()), &error)),
        _ => Ok(()),
    }
}

/// Runs CPU-bound or blocking work on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down and drops this future.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Runs `work` for each item on all cores and returns the results in order. The first error stops it.
pub(crate) async fn run_on_all_cores<I, T>(
    items: Vec<I>,
    work: impl Fn(I) -> Outcome<T> + Send + Sync + 'static,
) -> Outcome<Vec<T>>
where
    I: Send + 'static,
    T: Send + 'static,
{
    use futures::{StreamExt, TryStreamExt};
    let work = Arc::new(work);
    futures::stream::iter(items)
        .map(|item| {
            let work = work.clone();
            blocking(move || work(item))
        })
        .buffered(cores())
        .try_collect()
        .await
}

/// The number of threads for CPU-bound work.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_folder() {
        let folder = Path::new("/out");
        assert_eq!(join_below(folder, "a/b.json").unwrap(), Path::new("/out/a/b.json"));
        assert_eq!(join_below(folder, "./a").unwrap(), Path::new("/out/a"));
        for name in ["", ".", "..", "/etc/passwd", "a/../../b", "../x", "a\0b"] {
            assert!(join_below(folder, name).is_err(), "{name:?}");
        }
        let deepest = format!("{}f", "a/".repeat(MAX_FOLDERS));
        lode_model::files_view::check_path(&deepest).unwrap();
        join_below(folder, &deepest).unwrap();
        let error = join_below(folder, &format!("a/{deepest}")).unwrap_err().to_string();
        assert!(error.contains("has more than 64 folders"), "{error}");
    }

    #[test]
    fn folders_are_walked_in_order_and_without_git() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a/z", "a-b", ".git/config", ".hidden"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let names: Vec<String> = walk(folder.path()).unwrap().into_iter().map(|found| found.name).collect();
        assert_eq!(names, [".hidden", "a-b", "a/z", "b.txt"]);
    }

    #[test]
    fn a_shrinking_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "0123456789").unwrap();
        let file = DiskFile::open(&path).unwrap();
        fs::write(&path, "01").unwrap();
        let error = file.read_at(0, &mut [0; 10]).unwrap_err();
        assert_eq!(error.to_string(), "the file became shorter while it was read");
    }

    #[test]
    fn a_broken_link_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("gone", folder.path().join("config.json")).unwrap();
        let failure = walk(folder.path()).unwrap_err().to_string();
        assert!(failure.contains("config.json is a broken link"), "{failure}");
    }

    #[test]
    fn the_deepest_valid_folder_is_walked() {
        let folder = tempfile::tempdir().unwrap();
        let deepest = folder.path().join("a/".repeat(MAX_FOLDERS));
        fs::create_dir_all(&deepest).unwrap();
        fs::write(deepest.join("f"), "x").unwrap();
        assert_eq!(walk(folder.path()).unwrap().len(), 1);
        fs::create_dir(deepest.join("a")).unwrap();
        let error = walk(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is nested more than 64 folders deep"), "{error}");
    }

    #[test]
    fn a_link_loop_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(folder.path(), folder.path().join("self")).unwrap();
        assert!(walk(folder.path()).is_err());
    }
}
