//! Credentials per host, stored in a small file in the user's config folder that only its owner can read.

use std::{
    collections::BTreeMap,
    fmt,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::Error;

/// A user name and a password or token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).field("password", &"(hidden)").finish()
    }
}

/// Credentials as the file has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLogin {
    #[serde(flatten)]
    pub login: Login,
    /// The password is a token that was created for this file: logging out revokes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owns_token: bool,
}

impl From<Login> for SavedLogin {
    fn from(login: Login) -> Self {
        SavedLogin { login, owns_token: false }
    }
}

type LookUp = dyn Fn(&str) -> Option<Login> + Send + Sync;

/// Looks up the credentials for a host that requires them.
#[derive(Clone, Default)]
pub struct Credentials(Option<Arc<LookUp>>);

impl Credentials {
    /// No credentials: only public content is accessible.
    pub fn none() -> Self {
        Credentials(None)
    }

    /// Credentials for one `host[:port]`.
    pub fn fixed(host: impl Into<String>, login: Login) -> Self {
        let host = host.into();
        Credentials::from_fn(move |requested| (requested == host).then(|| login.clone()))
    }

    /// Calls `look_up` with `host[:port]` for each challenge that no cached token satisfies.
    pub fn from_fn(look_up: impl Fn(&str) -> Option<Login> + Send + Sync + 'static) -> Self {
        Credentials(Some(Arc::new(look_up)))
    }

    /// Reads `file` at each lookup, so that later changes take effect. An unreadable file is logged and
    /// counts as empty.
    pub fn from_file(file: CredentialFile) -> Self {
        Credentials::from_fn(move |host| match file.get(host) {
            Ok(login) => login,
            Err(error) => {
                tracing::warn!(%error, "failed to read the credentials file");
                None
            }
        })
    }

    pub(crate) fn get(&self, host: &str) -> Option<Login> {
        self.0.as_ref().and_then(|look_up| look_up(host))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Credentials(..)" } else { "Credentials(none)" })
    }
}

#[derive(Default, Serialize, Deserialize)]
struct CredentialsByHost {
    #[serde(default)]
    hosts: BTreeMap<String, SavedLogin>,
}

/// The file for `login` and `logout`. Format: `{"hosts": {"hub.local:5000": {"username": .., "password":
/// ..}}}`, mode 0600.
#[derive(Debug, Clone)]
pub struct CredentialFile {
    path: PathBuf,
}

impl CredentialFile {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        CredentialFile { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the credentials for `host[:port]`; none if the file does not exist.
    pub fn get(&self, host: &str) -> Result<Option<Login>, Error> {
        Ok(self.read()?.hosts.remove(host).map(|saved| saved.login))
    }

    pub fn set(&self, host: &str, login: impl Into<SavedLogin>) -> Result<(), Error> {
        let _lock = self.lock()?;
        let mut stored = self.read()?;
        stored.hosts.insert(host.to_owned(), login.into());
        self.write(&stored)
    }

    /// Removes the credentials for `host` and returns them.
    pub fn remove(&self, host: &str) -> Result<Option<SavedLogin>, Error> {
        // A user without credentials may have no config folder.
        if !self.path.exists() {
            return Ok(None);
        }
        let _lock = self.lock()?;
        let mut stored = self.read()?;
        let removed = stored.hosts.remove(host);
        if removed.is_some() {
            self.write(&stored)?;
        }
        Ok(removed)
    }

    /// Waits until no other process changes the file, and locks it until the returned file is dropped. The lock is on
    /// a file of its own, because each change replaces the credentials file.
    fn lock(&self) -> Result<std::fs::File, Error> {
        let failed = |source| self.file_error("lock", source);
        std::fs::create_dir_all(self.folder()).map_err(failed)?;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(self.path.with_extension("lock")).map_err(failed)?;
        match file.lock() {
            // Some network file systems have no locks.
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => Ok(file),
            locked => locked.map(|()| file).map_err(failed),
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    fn read(&self) -> Result<CredentialsByHost, Error> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(CredentialsByHost::default());
            }
            Err(source) => return Err(self.file_error("read", source)),
        };
        serde_json::from_slice(&bytes).map_err(|error| self.file_error("parse", error.into()))
    }

    fn write(&self, stored: &CredentialsByHost) -> Result<(), Error> {
        std::fs::create_dir_all(self.folder()).map_err(|source| self.file_error("write", source))?;
        let text =
            serde_json::to_vec_pretty(stored).map_err(|error| self.file_error("write", error.into()))?;
        // Write a temporary file and rename it, so that readers see either the old or the new file.
        let fresh = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let written = (|| {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let mut file = options.open(&fresh)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &self.path)
        })();
        written.map_err(|source| {
            let _gone = std::fs::remove_file(&fresh);
            self.file_error("write", source)
        })
    }

    fn file_error(&self, action: &'static str, source: std::io::Error) -> Error {
        Error::File { action, path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_come_back_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let file = CredentialFile::at(folder.path().join("lode/credentials.json"));
        assert_eq!(file.get("a:1").unwrap(), None);
        let login = Login { username: "ann".into(), password: "secret".into() };
        file.set("a:1", login.clone()).unwrap();
        file.set("b", Login { username: "bob".into(), password: "x".into() }).unwrap();
        assert_eq!(file.get("a:1").unwrap(), Some(login.clone()));
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(
                &std::fs::metadata(file.path()).unwrap().permissions(),
            );
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(!std::fs::read_to_string(file.path()).unwrap().contains("owns_token"));
        assert_eq!(file.remove("a:1").unwrap(), Some(login.clone().into()));
        assert_eq!(file.remove("a:1").unwrap(), None);
        assert_eq!(file.get("b").unwrap().unwrap().username, "bob");
        let owned = SavedLogin { login, owns_token: true };
        file.set("c", owned.clone()).unwrap();
        assert!(!format!("{owned:?}").contains("secret"));
        assert_eq!(file.remove("c").unwrap(), Some(owned));
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = CredentialFile::at(folder.path().join("lode/credentials.json"));
        let hosts: Vec<String> = (0..16).map(|number| format!("host{number}")).collect();
        std::thread::scope(|scope| {
            for host in &hosts {
                let login = Login { username: host.clone(), password: "x".into() };
                scope.spawn(|| file.set(host, login).unwrap());
            }
        });
        for host in &hosts {
            assert_eq!(file.get(host).unwrap().unwrap().username, *host);
        }
    }

    #[test]
    fn a_damaged_file_is_an_error_and_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        std::fs::write(&path, "not json").unwrap();
        let file = CredentialFile::at(&path);
        assert!(file.get("a").is_err());
        assert!(file.set("a", Login { username: String::new(), password: String::new() }).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "not json");
    }
}
