//! Files to write, as a name in an open folder. Below the folder that the caller chose, symbolic links are
//! never followed, even if another process replaces a folder with a link at the same time.

use std::{
    ffi::{OsStr, OsString},
    fs::{File, TryLockError},
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

/// How often a file is reopened if other processes rename or remove it before it is locked.
const MAX_LOCK_ATTEMPTS: usize = 16;

/// An open folder. It stays the same folder even if its path changes.
#[derive(Clone, Debug)]
pub struct OpenFolder {
    fd: Arc<OwnedFd>,
    /// The path for messages.
    path: PathBuf,
}

impl OpenFolder {
    /// Opens a folder that the caller chose. Links in its path are followed.
    pub fn open(path: &Path) -> io::Result<OpenFolder> {
        let opened = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let fd = fs::open(opened, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(OpenFolder { fd: Arc::new(fd), path: path.to_owned() })
    }

    /// Opens the folder at `relative` below this one and creates missing folders. A link in `relative` is an
    /// error.
    pub fn create_below(&self, relative: &Path) -> io::Result<OpenFolder> {
        relative.components().try_fold(self.clone(), |folder, part| match part {
            Component::Normal(name) => folder.create_child(name),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        })
    }

    fn create_child(&self, name: &OsStr) -> io::Result<OpenFolder> {
        match fs::mkdirat(&*self.fd, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd =
            fs::openat(&*self.fd, name, flags, Mode::empty()).map_err(|error| self.explain(name, error))?;
        Ok(OpenFolder { fd: Arc::new(fd), path: self.path.join(name) })
    }

    /// Returns the file `name` in this folder. `name` is a single path component.
    pub fn file(&self, name: impl Into<OsString>) -> Destination {
        Destination { folder: self.clone(), name: name.into() }
    }

    /// Syncs the folder, so that its file names are durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fs::fsync(&*self.fd)?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the system's "too many levels of symbolic links" or "not a directory" if the file is a link.
    fn explain(&self, name: &OsStr, error: Errno) -> io::Error {
        let is_link = || {
            let found = fs::statat(&*self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
            found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
        };
        match error {
            Errno::LOOP | Errno::NOTDIR if is_link() => io::Error::other(format!(
                "{} is a symbolic link, which is not followed; remove it or choose another folder",
                self.path.join(name).display()
            )),
            error => error.into(),
        }
    }
}

/// A file to write: a name in an open folder.
#[derive(Clone, Debug)]
pub struct Destination {
    folder: OpenFolder,
    name: OsString,
}

impl Destination {
    /// Returns the file at `path`. Links in the path of its folder are followed.
    pub fn at(path: &Path) -> io::Result<Destination> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(OpenFolder::open(path.parent().unwrap_or(Path::new("")))?.file(name))
    }

    pub fn folder(&self) -> &OpenFolder {
        &self.folder
    }

    /// The path for messages.
    pub fn path(&self) -> PathBuf {
        self.folder.path.join(&self.name)
    }

    /// Returns the file in the same folder with `suffix` appended to the name.
    pub fn with_suffix(&self, suffix: &str) -> Destination {
        let mut name = self.name.clone();
        name.push(suffix);
        Destination { folder: self.folder.clone(), name }
    }

    /// Opens the file for reading and writing; creates it if it is missing.
    pub fn open_or_create(&self) -> io::Result<File> {
        self.open(OFlags::RDWR | OFlags::CREATE)
    }

    /// Opens the file for appending; creates it if it is missing.
    pub fn open_to_append(&self) -> io::Result<File> {
        self.open(OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
    }

    /// Opens or creates the file and locks it. The returned file is the one that has this name: another process may
    /// have renamed or removed the opened file before it unlocked it.
    pub fn open_locked(&self) -> Result<File, TryLockError> {
        self.lock_current(|| self.open_or_create())
    }

    fn lock_current(&self, mut open: impl FnMut() -> io::Result<File>) -> Result<File, TryLockError> {
        for _ in 0..MAX_LOCK_ATTEMPTS {
            let file = open().map_err(TryLockError::Error)?;
            file.try_lock()?;
            if self.is_name_of(&file).map_err(TryLockError::Error)? {
                return Ok(file);
            }
        }
        Err(TryLockError::WouldBlock)
    }

    /// Whether the open file still has this name.
    pub fn is_name_of(&self, file: &File) -> io::Result<bool> {
        let open = fs::fstat(file)?;
        match fs::statat(&*self.folder.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (open.st_dev, open.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub fn open_to_read(&self) -> io::Result<File> {
        self.open(OFlags::RDONLY)
    }

    fn open(&self, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&*self.folder.fd, &self.name, flags, Mode::from_raw_mode(0o666))
            .map_err(|error| self.folder.explain(&self.name, error))?;
        Ok(File::from(fd))
    }

    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open_to_read()?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The length of the file, if it is a regular file and not a link.
    pub fn file_size(&self) -> Option<u64> {
        let found = fs::statat(&*self.folder.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        is_file.then(|| u64::try_from(found.st_size).ok()).flatten()
    }

    /// Renames the file to `other` and replaces an existing file. A link with that name is replaced, not
    /// followed.
    pub fn rename_to(&self, other: &Destination) -> io::Result<()> {
        Ok(fs::renameat(&*self.folder.fd, &self.name, &*other.folder.fd, &other.name)?)
    }

    pub fn remove(&self) -> io::Result<()> {
        Ok(fs::unlinkat(&*self.folder.fd, &self.name, AtFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn no_link_is_followed_below_the_folder() {
        let outside = tempfile::tempdir().unwrap();
        let inside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("victim"), "untouched").unwrap();
        symlink(outside.path(), inside.path().join("folder")).unwrap();
        symlink(outside.path().join("victim"), inside.path().join("file")).unwrap();
        symlink(outside.path().join("fresh"), inside.path().join("dangling")).unwrap();
        let folder = OpenFolder::open(inside.path()).unwrap();

        let error = folder.create_below(Path::new("folder/x")).unwrap_err().to_string();
        assert!(error.contains("folder is a symbolic link"), "{error}");
        for name in ["file", "dangling"] {
            for opened in [
                folder.file(name).open_or_create(),
                folder.file(name).open_to_append(),
                folder.file(name).open_to_read(),
            ] {
                let error = opened.unwrap_err().to_string();
                assert!(error.contains(&format!("{name} is a symbolic link")), "{error}");
            }
            assert_eq!(folder.file(name).file_size(), None);
        }
        for path in ["../x", "/etc", "."] {
            assert!(folder.create_below(Path::new(path)).is_err(), "{path}");
        }
        // Renaming replaces a link with the file.
        let fresh = folder.file("file").with_suffix(".part");
        fresh.open_or_create().unwrap().write_all(b"new").unwrap();
        fresh.rename_to(&folder.file("file")).unwrap();
        assert_eq!(std::fs::read_to_string(inside.path().join("file")).unwrap(), "new");
        assert_eq!(std::fs::read_to_string(outside.path().join("victim")).unwrap(), "untouched");
        assert!(!outside.path().join("fresh").exists());
    }

    #[test]
    fn a_file_that_is_renamed_before_it_is_locked_is_reopened() {
        let folder = tempfile::tempdir().unwrap();
        let whole = Destination::at(&folder.path().join("x")).unwrap();
        let part = whole.with_suffix(".part");
        std::fs::write(part.path(), "verified").unwrap();
        let mut opened = 0;
        let file = part
            .lock_current(|| {
                let file = part.open_or_create()?;
                opened += 1;
                if opened == 1 {
                    part.rename_to(&whole)?;
                }
                Ok(file)
            })
            .unwrap();
        file.set_len(0).unwrap();
        assert_eq!(opened, 2);
        assert_eq!(std::fs::read_to_string(whole.path()).unwrap(), "verified");
        assert!(part.is_name_of(&file).unwrap());
        assert!(!whole.is_name_of(&file).unwrap());
        assert!(matches!(part.open_locked(), Err(TryLockError::WouldBlock)));

        // Other processes replace the file each time.
        drop(file);
        let replaced = part.lock_current(|| {
            let file = part.open_or_create()?;
            part.remove()?;
            Ok(file)
        });
        assert!(matches!(replaced, Err(TryLockError::WouldBlock)));
    }

    #[test]
    fn a_folder_that_is_exchanged_for_a_link_stays_the_folder() {
        let outside = tempfile::tempdir().unwrap();
        let inside = tempfile::tempdir().unwrap();
        let folder = OpenFolder::open(inside.path()).unwrap().create_below(Path::new("a/b")).unwrap();
        std::fs::rename(inside.path().join("a"), inside.path().join("moved")).unwrap();
        std::fs::create_dir(outside.path().join("b")).unwrap();
        symlink(outside.path(), inside.path().join("a")).unwrap();
        folder.file("x").open_or_create().unwrap();
        assert!(inside.path().join("moved/b/x").exists());
        assert!(!outside.path().join("b/x").exists());
    }
}
