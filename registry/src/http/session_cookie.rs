//! The cookies of a browser: of its session, with the paths on which it counts, and of a sign-in at a provider.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, header};
use lode_client::Secret;

use super::links::{header_value, own_base_url};
use crate::Registry;
use crate::app::{SESSION_TIME, SIGN_ON_TIME};

/// The cookie of a session. Over https it has a prefix with which browsers accept it from this host alone.
const SESSION: &str = "lode";
/// The cookie of a sign-in at a provider, until the browser comes back.
const SIGN_IN: &str = "lode-sign-in";
const SECURE_PREFIX: &str = "__Host-";

/// First parts of the paths of pages.
const PAGES: [&str; 7] = ["", "login", "logout", "setup", "device", "connect", "-"];

/// Whether a path belongs to a page.
pub(crate) fn is_page(path: &str) -> bool {
    let first = path.strip_prefix('/').and_then(|path| path.split('/').next());
    first.is_some_and(|first| PAGES.contains(&first))
}

/// First parts of the paths of programs' APIs and of files, below which there are no pages.
const NO_PAGES: [&str; 10] =
    ["v2", "api", "v1", "hf", "lode", "healthz", "readyz", "metrics", "static", "token"];

/// Whether a path may belong to a page about a repository.
pub(crate) fn is_repository_page(path: &str) -> bool {
    let first = path.strip_prefix('/').and_then(|path| path.split('/').next());
    first.is_some_and(|first| !PAGES.contains(&first) && !NO_PAGES.contains(&first))
}

/// Whether a session counts on a path: on pages, and in Lode's own API.
pub(crate) fn accepts_session(path: &str) -> bool {
    path.starts_with("/lode/v1") || is_page(path) || is_repository_page(path)
}

/// The session's cookie, where it counts.
pub(crate) fn session_cookie(registry: &Registry, parts: &Parts) -> Option<String> {
    match accepts_session(parts.uri.path()) {
        true => cookie(registry, parts, SESSION),
        false => None,
    }
}

/// The cookie of a sign-in at a provider.
pub(crate) fn sign_in_cookie(registry: &Registry, parts: &Parts) -> Option<String> {
    cookie(registry, parts, SIGN_IN)
}

fn cookie(registry: &Registry, parts: &Parts, name: &str) -> Option<String> {
    let name = cookie_name(name, is_https(registry, parts));
    let lines = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

/// Whether the client reaches this server over https.
fn is_https(registry: &Registry, parts: &Parts) -> bool {
    own_base_url(parts, registry.config()).is_some_and(|base| base.starts_with("https://"))
}

fn cookie_name(name: &str, is_https: bool) -> String {
    let prefix = if is_https { SECURE_PREFIX } else { "" };
    format!("{prefix}{name}")
}

/// The `Set-Cookie` header that starts a session; with `None` the one that ends it.
pub(crate) fn set_session_cookie(registry: &Registry, parts: &Parts, value: Option<&Secret>) -> HeaderValue {
    set_cookie(registry, parts, SESSION, value.map(|value| (value, SESSION_TIME)))
}

/// The same for a sign-in at a provider.
pub(crate) fn set_sign_in_cookie(registry: &Registry, parts: &Parts, value: Option<&Secret>) -> HeaderValue {
    set_cookie(registry, parts, SIGN_IN, value.map(|value| (value, SIGN_ON_TIME)))
}

/// `SameSite=Lax`: the browser sends it when a provider sends the person back, and not with other sites' forms.
fn set_cookie(
    registry: &Registry,
    parts: &Parts,
    name: &str,
    value: Option<(&Secret, Duration)>,
) -> HeaderValue {
    let is_https = is_https(registry, parts);
    let (value, age) = value.map_or(("", 0), |(value, time)| (value.expose(), time.as_secs()));
    let secure = if is_https { "; Secure" } else { "" };
    let name = cookie_name(name, is_https);
    let text = format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Lax{secure}");
    let mut cookie = header_value(&text);
    cookie.set_sensitive(true);
    cookie
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_recognised() {
        for page in ["/", "/login", "/device", "/-/account", "/-/account/tokens", "/setup", "/connect"] {
            assert!(is_page(page), "{page}");
        }
        for other in ["", "/v2/", "/api/tags", "/lode/v1/me", "/logins", "/static/lode.css", "/token"] {
            assert!(!is_page(other), "{other}");
        }
        for page in ["/models", "/team/mini", "/team/mini/-/tags", "/logins", "/v3", "/a/v2/b"] {
            assert!(is_repository_page(page) && accepts_session(page), "{page}");
        }
        for other in [
            "",
            "/v2/team/mini/tags/list",
            "/api/tags",
            "/v1/models",
            "/hf/api/models",
            "/static/x",
            "/token",
        ] {
            assert!(!is_repository_page(other) && !accepts_session(other), "{other}");
        }
        assert!(accepts_session("/lode/v1/me") && !is_repository_page("/lode/v1/me"));
    }
}
