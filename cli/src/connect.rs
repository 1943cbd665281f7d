//! Resolves the names and hosts on the command line to registries, with their credentials, and locates the
//! user's config, cache and state folders.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use lode_client::{
    Client, ClientOptions, CredentialFile, Credentials, Login, PlainHttp, Registry, RetryNotice, RetryPolicy,
    is_loopback_host,
};
use lode_model::reference::{Name, Reference, ReferenceError, Repository, Tag};
use serde_json::Value;

use crate::{
    args::{DEFAULT_HOST, Global},
    error::{Failure, Outcome, chain},
    ui,
};

/// Timeout of the request that asks whether a server has accounts.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);

/// The client of a command, and the default registry for names without a host.
pub(crate) struct Connection {
    client: Client,
    host: String,
    authorities: Vec<reqwest::Certificate>,
}

/// A parsed name with its registry.
#[derive(Clone)]
pub(crate) struct Target {
    /// The host in the name; `None`: the default registry.
    pub(crate) host: Option<String>,
    pub(crate) registry: Registry,
    pub(crate) repository: Repository,
    pub(crate) reference: Reference,
}

impl Connection {
    pub(crate) fn new(global: &Global) -> Outcome<Connection> {
        Connection::open(global, Some(retry_notice()))
    }

    /// A connection that prints nothing.
    pub(crate) fn silent(global: &Global) -> Outcome<Connection> {
        Connection::open(global, None)
    }

    fn open(global: &Global, on_retry: Option<RetryNotice>) -> Outcome<Connection> {
        let authorities = authorities(global)?;
        let options = ClientOptions {
            credentials: credential_file().map(Credentials::from_file).unwrap_or_default(),
            plain_http: if global.plain_http { PlainHttp::Always } else { PlainHttp::Loopback },
            authorities: authorities.clone(),
            on_retry,
            upload_sessions_folder: cache_folder().map(|folder| folder.join("uploads")),
            ..ClientOptions::default()
        };
        // An empty LODE_HOST counts as unset.
        let host = if global.host.trim().is_empty() { DEFAULT_HOST } else { &global.host };
        Ok(Connection { client: Client::new(options)?, host: host.to_owned(), authorities })
    }

    /// The options of another client for the same servers, without credentials.
    pub(crate) fn anonymous_options(&self) -> ClientOptions {
        ClientOptions { authorities: self.authorities.clone(), ..ClientOptions::default() }
    }

    /// Whether the registry is a server without accounts, where every client may do everything.
    pub(crate) async fn needs_no_login(&self, registry: &Registry) -> bool {
        let options = ClientOptions {
            retry: RetryPolicy::none(),
            response_timeout: PROBE_TIMEOUT,
            ..self.anonymous_options()
        };
        let me = async {
            let anonymous = Client::new(options)?.registry(registry.url().as_str())?;
            anonymous.json_get::<Value>("lode/v1/me").await
        };
        // Other registries and unreachable servers: the command itself reports the error.
        me.await.is_ok_and(|me| me.get("name") == Some(&Value::Null))
    }

    /// The server named by `--host` or LODE_HOST.
    pub(crate) fn default_registry(&self) -> Outcome<Registry> {
        self.client
            .registry(&self.host)
            .map_err(|error| Failure::from(error).with_context("--host or LODE_HOST"))
    }

    /// The registry at `host`, or the default one.
    pub(crate) fn registry(&self, host: Option<&str>) -> Outcome<Registry> {
        match host {
            Some(host) => Ok(self.client.registry(host)?),
            None => self.default_registry(),
        }
    }

    pub(crate) fn target(&self, name: &str) -> Outcome<Target> {
        let parsed: Name = name.parse().map_err(|error| not_a_name(name, &error))?;
        self.check_has_repository(name)?;
        Ok(Target {
            registry: self.registry(parsed.host.as_deref())?,
            host: parsed.host,
            repository: parsed.repository,
            reference: parsed.reference,
        })
    }

    /// Refuses a server without a repository. By docker's rule, `localhost:5000` is the tag 5000 of a repository
    /// `localhost`, which is a mistake. With a host in front, such a repository can be named.
    fn check_has_repository(&self, name: &str) -> Outcome {
        let (host, port) = name.split_once(':').map_or((name, None), |(host, port)| (host, Some(port)));
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
        let is_this_machine = host == "localhost" || host.parse::<Ipv4Addr>().is_ok();
        // Other names with a dot can be models: `qwen2.5:7`.
        let is_default = || {
            name.contains(['.', ':']) && self.default_registry().is_ok_and(|registry| registry.host() == name)
        };
        match is_port && (is_this_machine || is_default()) {
            true => Err(Failure::new(format!("`{name}` is a server without a repository"))
                .hint(format!("name the repository after it, such as `{name}/team/mini:latest`"))),
            false => Ok(()),
        }
    }

    /// The registry and the repository in a name, whose tag does not matter.
    pub(crate) fn repository(&self, name: &str) -> Outcome<(Registry, Repository)> {
        let parsed: Name = name.parse().map_err(|error| {
            Failure::with_source(format!("`{name}` is not a repository"), &error)
                .hint("a repository is [host[:port]/]repository, such as team/mini")
        })?;
        self.check_has_repository(name)?;
        Ok((self.registry(parsed.host.as_deref())?, parsed.repository))
    }

    /// A target to write to; new content can only be addressed by tag.
    pub(crate) fn target_tag(&self, name: &str) -> Outcome<(Target, Tag)> {
        let target = self.target(name)?;
        match target.reference.clone() {
            Reference::Tag(tag) => Ok((target, tag)),
            Reference::Digest(_) => {
                Err(Failure::new(format!("`{name}` is a digest, but a new model needs a tag"))
                    .hint(format!("use a tag: `{}:latest`", target.repository)))
            }
        }
    }
}

/// Prints why an attempt failed and when it is repeated. Parallel requests fail for the same reason: one message for
/// each wait suffices.
fn retry_notice() -> RetryNotice {
    let silent_until = Mutex::new(Instant::now());
    RetryNotice::new(move |error, delay| {
        let mut silent_until = silent_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now < *silent_until {
            return;
        }
        *silent_until = now + delay;
        let error = chain(error);
        ui::print_message(match delay.as_secs_f64().round() {
            0.0 => format!("{error}; trying again"),
            seconds => format!("{error}; trying again in {seconds} s"),
        });
    })
}

impl Target {
    /// `team/mini:latest`, the form that the server's APIs accept.
    pub(crate) fn model(&self) -> String {
        match &self.reference {
            Reference::Tag(tag) => format!("{}:{tag}", self.repository),
            Reference::Digest(digest) => format!("{}@{digest}", self.repository),
        }
    }

    /// `hub.local/team/mini:latest`, the form that commands accept.
    pub(crate) fn full_name(&self) -> String {
        match &self.host {
            Some(host) => format!("{host}/{}", self.model()),
            None => self.model(),
        }
    }

    /// The URL path of this model in `/lode/v1/<kind>/`.
    pub(crate) fn api_path(&self, kind: &str) -> String {
        format!("lode/v1/{kind}/{}/{}", self.repository, self.reference)
    }

    /// Converts an error; a "not found" error names this target.
    pub(crate) fn not_found(&self, error: lode_client::Error) -> Failure {
        if error.is_not_found() {
            let what =
                if matches!(error, lode_client::Error::NameUnknown { .. }) { "repository" } else { "model" };
            return Failure::new(format!(
                "{what} `{}` not found on `{}`",
                self.model(),
                self.registry.host()
            ))
            .hint("`lode repo list` shows the repositories")
            .missing(self.registry.clone(), self.model());
        }
        error.into()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.model())
    }
}

/// The error of a text that is not a name.
pub(crate) fn not_a_name(name: &str, error: &ReferenceError) -> Failure {
    const HINT: &str = "a name is [host[:port]/]repository[:tag|@digest], such as team/mini:latest";
    let ReferenceError::Repository { text } = error else {
        return Failure::with_source(format!("`{name}` is not a name"), error).hint(HINT);
    };
    let failure = match text == name {
        true => Failure::new(error.to_string()),
        false => Failure::with_source(format!("`{name}` is not a name"), error),
    };
    let lower = name.replacen(text, &text.to_lowercase(), 1);
    match lower.parse::<Name>() {
        Ok(_) => failure.hint(format!("did you mean `{lower}`?")).hint(HINT),
        Err(_) => failure.hint(HINT),
    }
}

/// Whether the registry is on this machine.
pub(crate) fn is_local(registry: &Registry) -> bool {
    registry.url().host_str().is_some_and(is_loopback_host)
}

/// Whether requests to the registry are encrypted, or stay on this machine.
pub(crate) fn is_confidential(registry: &Registry) -> bool {
    registry.url().scheme() == "https" || is_local(registry)
}

/// The certificate authorities of `--ca-file` or LODE_CA_FILE; an empty LODE_CA_FILE counts as unset.
pub(crate) fn authorities(global: &Global) -> Outcome<Vec<reqwest::Certificate>> {
    match global.ca_file.as_deref().filter(|file| !file.as_os_str().is_empty()) {
        Some(file) => read_authorities(file),
        None => Ok(Vec::new()),
    }
}

fn read_authorities(file: &Path) -> Outcome<Vec<reqwest::Certificate>> {
    let name = || format!("--ca-file or LODE_CA_FILE: {}", file.display());
    let bytes = std::fs::read(file).map_err(|error| Failure::with_source(name(), &error))?;
    let found = reqwest::Certificate::from_pem_bundle(&bytes)
        .map_err(|error| Failure::with_source(name(), &error))?;
    match found.is_empty() {
        true => Err(Failure::new(format!("{} has no certificate", name()))
            .hint("the file has lines `-----BEGIN CERTIFICATE-----`, in PEM format")),
        false => Ok(found),
    }
}

/// The file for credentials; `None` without a home folder.
pub(crate) fn credential_file() -> Option<CredentialFile> {
    folder("XDG_CONFIG_HOME", ".config").map(|folder| CredentialFile::at(folder.join("credentials.json")))
}

/// The credentials that `lode login` has saved for a registry.
pub(crate) fn saved_login(registry: &Registry) -> Outcome<Option<Login>> {
    match credential_file() {
        Some(file) => Ok(file.get(&registry.credential_key())?),
        None => Ok(None),
    }
}

pub(crate) fn cache_folder() -> Option<PathBuf> {
    folder("XDG_CACHE_HOME", ".cache")
}

/// The folder for data that is kept between runs and is not worth a backup; `None` without a home folder.
pub(crate) fn state_folder() -> Option<PathBuf> {
    folder("XDG_STATE_HOME", ".local/state")
}

fn folder(variable: &str, below_home: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set(variable).or_else(|| set("HOME").map(|home| home.join(below_home)))?;
    Some(base.join("lode"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(host: &str) -> Connection {
        Connection::new(&Global { host: host.to_owned(), ..Global::default() }).unwrap()
    }

    #[test]
    fn names_find_their_registry() {
        let connection = connection("http://127.0.0.1:5000");
        let check = |name: &str, url: &str, model: &str| {
            let target = connection.target(name).unwrap();
            assert_eq!((target.registry.url().as_str(), target.model().as_str()), (url, model), "{name}");
        };
        check("lode-demo", "http://127.0.0.1:5000/", "lode-demo:latest");
        check("team/mini:8b", "http://127.0.0.1:5000/", "team/mini:8b");
        check("a/b/c/d", "http://127.0.0.1:5000/", "a/b/c/d:latest");
        check("hub.local/team/mini", "https://hub.local/", "team/mini:latest");
        check("localhost:5001/mini", "http://localhost:5001/", "mini:latest");
        check("localhost/mini", "http://localhost/", "mini:latest");
        // Not servers, and a server's name as a repository.
        check("model:123", "http://127.0.0.1:5000/", "model:123");
        check("qwen2.5:7", "http://127.0.0.1:5000/", "qwen2.5:7");
        check("mini", "http://127.0.0.1:5000/", "mini:latest");
        check("localhost:v1", "http://127.0.0.1:5000/", "localhost:v1");
        check("127.0.0.1:5000/localhost:5000", "http://127.0.0.1:5000/", "localhost:5000");
    }

    #[test]
    fn a_server_needs_a_repository() {
        for (host, name) in [
            ("hub.local", "localhost"),
            ("hub.local", "localhost:5000"),
            ("hub.local", "127.0.0.1:49203"),
            ("hub.local", "10.1.2.3"),
            ("hub.local", "hub.local"),
            ("https://hub.local:8443", "hub.local:8443"),
            ("hub:5000", "hub:5000"),
        ] {
            let failure = connection(host).target(name).err().unwrap().to_string();
            assert!(failure.contains("is a server without a repository"), "{name}: {failure}");
            assert!(failure.contains(&format!("`{name}/team/mini:latest`")), "{name}: {failure}");
        }
    }

    #[test]
    fn invalid_names_are_refused_with_a_hint() {
        let connection = connection("hub.local");
        for name in ["", "Team/Mini", "a//b", "x:", "x@sha256:123", "-x"] {
            let failure =
                connection.target(name).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(failure.contains("hint: a name is"), "{name}: {failure}");
        }
        let failure = |name: &str| connection.target(name).err().unwrap().to_string();
        assert!(failure("DS/Tiny").starts_with("error: `DS/Tiny` is not a repository name (expected"));
        for (name, lower) in [("DS/Tiny", "ds/tiny"), ("hub.local/DS:Q4", "hub.local/ds:Q4")] {
            let failure = failure(name);
            assert!(failure.contains(&format!("hint: did you mean `{lower}`?")), "{failure}");
        }
        assert!(!failure("a//B").contains("did you mean"));
        let digest = format!("x@sha256:{}", "0".repeat(64));
        assert!(connection.target(&digest).is_ok());
        assert!(connection.target_tag(&digest).is_err());
    }

    #[test]
    fn the_default_host_may_lack_a_scheme() {
        let url =
            |host: &str| connection(host).default_registry().map(|registry| registry.url().to_string()).ok();
        assert_eq!(url("127.0.0.1:5001").as_deref(), Some("http://127.0.0.1:5001/"));
        assert_eq!(url("hub.local").as_deref(), Some("https://hub.local/"));
        assert_eq!(url("http://hub.local:1/").as_deref(), Some("http://hub.local:1/"));
        assert_eq!(url("nonsense://x"), None);
    }
}
