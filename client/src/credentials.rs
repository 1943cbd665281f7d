//! Credentials per server, stored in a small file in the user's config folder that only its owner can read.

use std::{
    collections::BTreeMap,
    fmt,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use url::Url;

use crate::{Error, address};

/// The user name of clients that have only a token, which names its account. No account of Lode has it.
pub const TOKEN_USER: &str = "token";

/// The server that credentials are for: scheme, host and port. Its text is the shortest address that stands for the
/// server: `host[:port]` for https, for http on this machine, and `http://host[:port]` for http elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CredentialKey(String);

impl CredentialKey {
    /// The key of the server at `url`.
    pub fn of(url: &Url) -> CredentialKey {
        let host = address::host_and_port(url);
        let default_scheme = match url.host().is_some_and(|host| address::is_loopback(&host)) {
            true => "http",
            false => "https",
        };
        CredentialKey(match url.scheme() {
            scheme if scheme == default_scheme => host,
            scheme => format!("{scheme}://{host}"),
        })
    }
}

impl fmt::Display for CredentialKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

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

type LookUp = dyn Fn(&CredentialKey) -> Option<Login> + Send + Sync;

/// Looks up the credentials for a server that requires them.
#[derive(Clone, Default)]
pub struct Credentials(Option<Arc<LookUp>>);

impl Credentials {
    /// No credentials: only public content is accessible.
    pub fn none() -> Self {
        Credentials(None)
    }

    /// Credentials for one server.
    pub fn fixed(server: CredentialKey, login: Login) -> Self {
        Credentials::from_fn(move |requested| (*requested == server).then(|| login.clone()))
    }

    /// Calls `look_up` for each challenge that no cached token satisfies.
    pub fn from_fn(look_up: impl Fn(&CredentialKey) -> Option<Login> + Send + Sync + 'static) -> Self {
        Credentials(Some(Arc::new(look_up)))
    }

    /// Reads `file` at each lookup, so that later changes take effect. An unreadable file is logged and
    /// counts as empty.
    pub fn from_file(file: CredentialFile) -> Self {
        Credentials::from_fn(move |server| match file.get(server) {
            Ok(login) => login,
            Err(error) => {
                tracing::warn!(%error, "failed to read the credentials file");
                None
            }
        })
    }

    pub(crate) fn get(&self, server: &Url) -> Option<Login> {
        self.0.as_ref().and_then(|look_up| look_up(&CredentialKey::of(server)))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Credentials(..)" } else { "Credentials(none)" })
    }
}

#[derive(Default, Serialize, Deserialize)]
struct CredentialsByServer {
    #[serde(default)]
    hosts: BTreeMap<CredentialKey, SavedLogin>,
}

/// The file for `login` and `logout`. Format: `{"hosts": {"hub.local:5000": {"username": .., "password":
/// ..}}}`, mode 0600. The names are those of [`CredentialKey`].
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

    /// Returns the credentials for `server`; none if the file does not exist.
    pub fn get(&self, server: &CredentialKey) -> Result<Option<Login>, Error> {
        Ok(self.read()?.hosts.remove(server).map(|saved| saved.login))
    }

    pub fn set(&self, server: &CredentialKey, login: impl Into<SavedLogin>) -> Result<(), Error> {
        let _lock = self.lock()?;
        let mut stored = self.read()?;
        stored.hosts.insert(server.clone(), login.into());
        self.write(&stored)
    }

    /// Removes the credentials for `server` and returns them.
    pub fn remove(&self, server: &CredentialKey) -> Result<Option<SavedLogin>, Error> {
        // A user without credentials may have no config folder.
        if !self.path.exists() {
            return Ok(None);
        }
        let _lock = self.lock()?;
        let mut stored = self.read()?;
        let removed = stored.hosts.remove(server);
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

    fn read(&self) -> Result<CredentialsByServer, Error> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(CredentialsByServer::default());
            }
            Err(source) => return Err(self.file_error("read", source)),
        };
        serde_json::from_slice(&bytes).map_err(|error| self.file_error("parse", error.into()))
    }

    fn write(&self, stored: &CredentialsByServer) -> Result<(), Error> {
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

    fn key(address: &str) -> CredentialKey {
        CredentialKey::of(&address::base_url(address, address::PlainHttp::Loopback).unwrap())
    }

    #[test]
    fn keys_tell_schemes_and_ports_apart() {
        let check = |address: &str, expect: &str| assert_eq!(key(address).to_string(), expect, "{address}");
        check("hub.local", "hub.local");
        check("https://HUB.local:443/", "hub.local");
        check("http://hub.local", "http://hub.local");
        check("http://hub.local:80", "http://hub.local");
        check("http://hub.local:443", "http://hub.local:443");
        check("https://hub.local:80", "hub.local:80");
        check("hub.local:5000", "hub.local:5000");
        check("http://hub.local:5000", "http://hub.local:5000");
        check("127.0.0.1:5000", "127.0.0.1:5000");
        check("https://127.0.0.1:5000", "https://127.0.0.1:5000");
        check("http://[::1]:5000", "[::1]:5000");
        check("https://localhost", "https://localhost");
    }

    #[test]
    fn a_login_is_for_its_scheme_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = CredentialFile::at(folder.path().join("credentials.json"));
        let login = |username: &str| Login { username: username.to_owned(), password: "x".to_owned() };
        // As versions before this one have saved it.
        std::fs::write(file.path(), r#"{"hosts":{"hub.local:5000":{"username":"ann","password":"x"}}}"#)
            .unwrap();
        let (tls, plain) = (key("https://hub.local:5000"), key("http://hub.local:5000"));
        assert_eq!(file.get(&tls).unwrap(), Some(login("ann")));
        assert_eq!(file.get(&plain).unwrap(), None);
        file.set(&plain, login("bob")).unwrap();
        assert_eq!(
            (file.get(&tls).unwrap(), file.get(&plain).unwrap()),
            (Some(login("ann")), Some(login("bob")))
        );
        file.remove(&tls).unwrap();
        assert_eq!((file.get(&tls).unwrap(), file.get(&plain).unwrap()), (None, Some(login("bob"))));
    }

    #[test]
    fn logins_come_back_and_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let file = CredentialFile::at(folder.path().join("lode/credentials.json"));
        assert_eq!(file.get(&key("a:1")).unwrap(), None);
        let login = Login { username: "ann".into(), password: "secret".into() };
        file.set(&key("a:1"), login.clone()).unwrap();
        file.set(&key("b"), Login { username: "bob".into(), password: "x".into() }).unwrap();
        assert_eq!(file.get(&key("a:1")).unwrap(), Some(login.clone()));
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(
                &std::fs::metadata(file.path()).unwrap().permissions(),
            );
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(!std::fs::read_to_string(file.path()).unwrap().contains("owns_token"));
        assert_eq!(file.remove(&key("a:1")).unwrap(), Some(login.clone().into()));
        assert_eq!(file.remove(&key("a:1")).unwrap(), None);
        assert_eq!(file.get(&key("b")).unwrap().unwrap().username, "bob");
        let owned = SavedLogin { login, owns_token: true };
        file.set(&key("c"), owned.clone()).unwrap();
        assert!(!format!("{owned:?}").contains("secret"));
        assert_eq!(file.remove(&key("c")).unwrap(), Some(owned));
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = CredentialFile::at(folder.path().join("lode/credentials.json"));
        let hosts: Vec<String> = (0..16).map(|number| format!("host{number}")).collect();
        std::thread::scope(|scope| {
            for host in &hosts {
                let login = Login { username: host.clone(), password: "x".into() };
                scope.spawn(|| file.set(&key(host), login).unwrap());
            }
        });
        for host in &hosts {
            assert_eq!(file.get(&key(host)).unwrap().unwrap().username, *host);
        }
    }

    #[test]
    fn a_damaged_file_is_an_error_and_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials.json");
        std::fs::write(&path, "not json").unwrap();
        let file = CredentialFile::at(&path);
        assert!(file.get(&key("a")).is_err());
        assert!(file.set(&key("a"), Login { username: String::new(), password: String::new() }).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "not json");
    }
}
