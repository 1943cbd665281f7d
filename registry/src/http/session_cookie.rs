//! The cookie of a browser's session, and the paths on which it counts.

use http::request::Parts;
use http::{HeaderValue, header};
use lode_client::Secret;

use super::links::{header_value, own_base_url};
use crate::Registry;
use crate::app::SESSION_TIME;

/// The cookie of a session over https, and over http.
const SECURE_COOKIE: &str = "__Host-lode";
const PLAIN_COOKIE: &str = "lode";

/// First parts of the paths of pages.
const PAGES: [&str; 7] = ["", "login", "logout", "setup", "device", "connect", "-"];

/// Whether a path belongs to a page.
pub(crate) fn is_page(path: &str) -> bool {
    let first = path.strip_prefix('/').and_then(|path| path.split('/').next());
    first.is_some_and(|first| PAGES.contains(&first))
}

/// The session's cookie, on pages and in Lode's own API.
pub(crate) fn session_cookie(registry: &Registry, parts: &Parts) -> Option<String> {
    let path = parts.uri.path();
    if !path.starts_with("/lode/v1") && !is_page(path) {
        return None;
    }
    let name = cookie_name(is_https(registry, parts));
    let lines = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

/// Whether the client reaches this server over https.
fn is_https(registry: &Registry, parts: &Parts) -> bool {
    own_base_url(parts, registry.config()).is_some_and(|base| base.starts_with("https://"))
}

fn cookie_name(is_https: bool) -> &'static str {
    if is_https { SECURE_COOKIE } else { PLAIN_COOKIE }
}

/// The `Set-Cookie` header that starts a session; with `None` the one that ends it.
pub(crate) fn set_session_cookie(registry: &Registry, parts: &Parts, value: Option<&Secret>) -> HeaderValue {
    let is_https = is_https(registry, parts);
    let (value, age) = value.map_or(("", 0), |value| (value.expose(), SESSION_TIME.as_secs()));
    let secure = if is_https { "; Secure" } else { "" };
    let name = cookie_name(is_https);
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
    }
}
