//! The upstream registry of a mirrored prefix: its client.
//! `app::mirror` decides what is fetched and when; this module maps names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use lode_client::{Client, ClientOptions, CredentialKey, Credentials, Egress, Login, PlainHttp, RetryPolicy};
use lode_model::reference::Repository;

use crate::config::MirrorConfig;
use crate::time::{millis, now_ms};
use crate::{Error, OpenError};

/// How long requests use stored content instead of an upstream that did not respond.
const FAILURE_BACKOFF: Duration = Duration::from_secs(5);
/// Timeout for an upstream that sends no data.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout until the response begins.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 3;

/// One mirrored prefix.
pub(crate) struct Upstream {
    prefix: String,
    /// The prefix of the upstream's own repository names.
    path: String,
    pub(crate) check_after: Duration,
    pub(crate) registry: lode_client::Registry,
    /// When the upstream is tried again, in Unix milliseconds.
    retry_at_ms: AtomicI64,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Upstream {
    pub(crate) fn open(mirror: &MirrorConfig, egress: &Egress) -> Result<Upstream, OpenError> {
        let unusable = |reason: String| OpenError::Config { setting: "mirror", reason };
        let MirrorConfig { prefix, upstream, username, password, check_after, plain_http } = mirror;
        // 1. The prefix.
        let parts = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && (parts == prefix || parts.parse::<Repository>().is_err()) {
            return Err(unusable(format!("prefix `{prefix}` is not a path that ends in `/`")));
        }
        // 2. The upstream's address.
        if !upstream.username().is_empty() || upstream.password().is_some() {
            return Err(unusable("set username and password instead of a login in the address".into()));
        }
        let path = upstream.path().trim_matches('/');
        if !path.is_empty() && path.parse::<Repository>().is_err() {
            return Err(unusable(format!("`{path}` is not a repository path")));
        }
        let loopback = upstream.host_str().is_some_and(lode_client::is_loopback_host);
        if upstream.scheme() == "http" && !loopback && !plain_http {
            return Err(unusable(format!("{upstream} is not https; set plain_http = true to allow it")));
        }
        let mut base = upstream.clone();
        base.set_path("");
        let base = lode_client::base_url(base.as_str(), PlainHttp::default())
            .map_err(|error| unusable(error.to_string()))?;
        // 3. The credentials.
        let credentials = match (username, password) {
            (None, None) => Credentials::none(),
            (Some(username), Some(password)) => {
                let login = Login { username: username.clone(), password: password.expose().to_owned() };
                // Credentials are sent only to this registry, never to a host that it redirects to.
                Credentials::fixed(CredentialKey::of(&base), login)
            }
            _ => return Err(unusable("set both username and password, or neither".into())),
        };
        let retry =
            RetryPolicy { attempts: ATTEMPTS, base: Duration::from_millis(200), cap: Duration::from_secs(2) };
        // The upstream itself is always permitted; its token server and its redirects are subject to the
        // policy.
        let options = ClientOptions {
            credentials,
            retry,
            idle_timeout: IDLE_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            egress: Some(egress.with_permitted(&base)),
            ..ClientOptions::default()
        };
        let client = Client::new(options).map_err(|error| unusable(error.to_string()))?;
        let registry = client.registry(base.as_str()).map_err(|error| unusable(error.to_string()))?;
        let path = if path.is_empty() { String::new() } else { format!("{path}/") };
        Ok(Upstream {
            prefix: prefix.clone(),
            path,
            check_after: *check_after,
            registry,
            retry_at_ms: AtomicI64::new(0),
        })
    }

    /// The upstream's name for one of our repositories; None if it is not below the prefix.
    pub(crate) fn repository(&self, ours: &Repository) -> Option<Repository> {
        let rest = ours.as_str().strip_prefix(&self.prefix)?;
        format!("{}{rest}", self.path).parse().ok()
    }

    /// Whether a recent request failed, so that the upstream should not be tried yet.
    pub(crate) fn is_backing_off(&self) -> bool {
        now_ms() < self.retry_at_ms.load(Ordering::Relaxed)
    }

    /// Converts an error of the client, and records a transient one.
    pub(crate) fn note_failure(&self, error: lode_client::Error) -> Error {
        if error.is_transient() {
            self.retry_at_ms.store(now_ms().saturating_add(millis(FAILURE_BACKOFF)), Ordering::Relaxed);
            return Error::UpstreamUnavailable(Arc::new(error));
        }
        Error::UpstreamInvalid(Arc::new(error))
    }
}

/// The upstream with the longest prefix that matches a name.
pub(crate) fn find_upstream<'a>(
    upstreams: &'a [Arc<Upstream>],
    name: &Repository,
) -> Option<&'a Arc<Upstream>> {
    upstreams
        .iter()
        .filter(|upstream| upstream.repository(name).is_some())
        .max_by_key(|upstream| upstream.prefix.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(mirror: &MirrorConfig) -> Result<Upstream, OpenError> {
        Upstream::open(mirror, &Egress::new(Vec::new()).unwrap())
    }

    fn mirror(prefix: &str, upstream: &str) -> MirrorConfig {
        MirrorConfig {
            prefix: prefix.into(),
            upstream: upstream.parse().unwrap(),
            username: None,
            password: None,
            check_after: Duration::from_secs(300),
            plain_http: false,
        }
    }

    #[test]
    fn names_on_both_sides() {
        let check = |prefix: &str, upstream: &str, ours: &str, expect: Option<&str>| {
            let opened = open(&mirror(prefix, upstream)).unwrap();
            let theirs = opened.repository(&ours.parse().unwrap());
            assert_eq!(theirs.as_ref().map(Repository::as_str), expect, "{prefix} {upstream} {ours}");
        };
        check("hub/", "https://registry.example", "hub/library/alpine", Some("library/alpine"));
        check("hub/", "https://registry.example/team/", "hub/mini", Some("team/mini"));
        check("hub/", "https://registry.example", "hubs/mini", None);
        check("hub/", "https://registry.example", "hub", None);
        check("", "http://127.0.0.1:5001", "a/b", Some("a/b"));
    }

    #[test]
    fn the_longest_prefix_wins() {
        let below = |prefix| Arc::new(open(&mirror(prefix, "https://registry.example")).unwrap());
        let upstreams = [below("hub/"), below("hub/deep/"), below("other/")];
        let of = |name: &str| find_upstream(&upstreams, &name.parse().unwrap()).map(|u| u.prefix.as_str());
        assert_eq!(of("hub/x"), Some("hub/"));
        assert_eq!(of("hub/deep/x"), Some("hub/deep/"));
        assert_eq!(of("elsewhere/x"), None);
    }

    #[test]
    fn invalid_mirror_settings_are_reported() {
        let refused = |mirror: MirrorConfig| open(&mirror).unwrap_err().to_string();
        assert!(refused(mirror("hub", "https://registry.example")).contains("`hub`"));
        assert!(refused(mirror("Hub/", "https://registry.example")).contains("`Hub/`"));
        assert!(refused(mirror("hub/", "http://registry.example")).contains("plain_http"));
        assert!(refused(mirror("hub/", "ftp://registry.example")).contains("mirror"));
        assert!(refused(mirror("hub/", "https://a:b@registry.example")).contains("login"));
        let half =
            MirrorConfig { username: Some("ann".into()), ..mirror("hub/", "https://registry.example") };
        assert!(refused(half).contains("both username and password"));
        let plain = MirrorConfig { plain_http: true, ..mirror("hub/", "http://registry.example") };
        assert!(open(&plain).is_ok());
    }
}
