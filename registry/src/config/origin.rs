//! The origins of web pages that may use the APIs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::{Origin, Url};

/// The rules of a server on loopback: pages of programs on the same machine, as ollama allows them.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// An origin such as `https://app.example.com`, with at most one `*` for a part of it, or `*` for every origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedOrigin(String);

#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is not an origin such as https://app.example.com, https://*.example.com, http://localhost:* or *"
)]
pub struct OriginError(String);

impl AllowedOrigin {
    /// Whether pages of this origin, as a browser names it, are allowed.
    pub(crate) fn matches(&self, origin: &str) -> bool {
        match self.0.split_once('*') {
            None => self.0 == origin,
            Some(("", "")) => true,
            Some((before, after)) => {
                let inner = origin.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                inner.is_some_and(|part| !part.is_empty() && part.bytes().all(is_host_byte))
            }
        }
    }
}

/// Whether an origin is a page of a program on this machine.
pub(crate) fn is_loopback_origin(origin: &str) -> bool {
    let rest = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        LOOPBACK.iter().any(|host| match rest.strip_prefix(host) {
            Some("") => true,
            Some(port) => port
                .strip_prefix(':')
                .is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())),
            None => false,
        })
    })
}

/// What `*` may stand for: names and ports, and no part of another URL.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-".contains(&byte)
}

impl FromStr for AllowedOrigin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        let invalid = || OriginError(text.to_owned());
        if text == "*" {
            return Ok(AllowedOrigin(text.to_owned()));
        }
        let lower = text.to_ascii_lowercase();
        let (scheme, rest) = lower.split_once("://").ok_or_else(invalid)?;
        if lower.matches('*').count() > 1 || scheme.contains('*') {
            return Err(invalid());
        }
        // A port or a name in the place of `*` shows whether the rest is an origin.
        let is_port = rest.ends_with(":*");
        let sample = lower.replace('*', if is_port { "1" } else { "a" });
        let url = Url::parse(&sample).map_err(|_| invalid())?;
        let is_plain = url.username().is_empty()
            && url.password().is_none()
            && ["", "/"].contains(&url.path())
            && url.query().is_none()
            && url.fragment().is_none()
            && !rest.is_empty()
            && !rest.contains('/');
        match url.origin() {
            // The port that a scheme implies is not part of an origin.
            Origin::Tuple(..) if is_plain && !lower.contains('*') => {
                Ok(AllowedOrigin(url.origin().ascii_serialization()))
            }
            // Schemes of browser extensions have no origin by this rule, but browsers send one.
            _ if is_plain => Ok(AllowedOrigin(lower)),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for AllowedOrigin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AllowedOrigin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(rule: &str, origin: &str) -> bool {
        rule.parse::<AllowedOrigin>().unwrap().matches(origin)
    }

    #[test]
    fn rules_match_origins() {
        for (rule, origin) in [
            ("*", "https://any.example"),
            ("*", "null"),
            ("https://app.example.com", "https://app.example.com"),
            ("https://APP.example.com:443", "https://app.example.com"),
            ("https://app.example.com:8443", "https://app.example.com:8443"),
            ("https://*.example.com", "https://a.b.example.com"),
            ("http://localhost:*", "http://localhost:3000"),
            ("chrome-extension://*", "chrome-extension://abcdef"),
        ] {
            assert!(matches(rule, origin), "{rule} {origin}");
        }
        for (rule, origin) in [
            ("https://app.example.com", "http://app.example.com"),
            ("https://app.example.com", "https://app.example.com.evil.example"),
            ("https://app.example.com", "https://app.example.com:8443"),
            ("https://*.example.com", "https://example.com"),
            ("https://*.example.com", "https://.example.com"),
            ("https://*.example.com", "https://evil.example/.example.com"),
            ("https://*.example.com", "https://evil.example:1.example.com"),
            ("http://localhost:*", "http://localhost"),
            ("http://localhost:*", "http://localhost:1@evil.example"),
            ("https://app.example.com", "null"),
        ] {
            assert!(!matches(rule, origin), "{rule} {origin}");
        }
    }

    #[test]
    fn other_rules_are_refused() {
        for text in [
            "",
            "null",
            "app.example.com",
            "https://",
            "https://*.*.example",
            "*://a",
            "https://a/b",
            "https://u@a",
            "https://a?b",
        ] {
            assert!(text.parse::<AllowedOrigin>().is_err(), "{text}");
        }
    }

    #[test]
    fn pages_of_this_machine() {
        for origin in
            ["http://localhost", "http://localhost:3000", "https://127.0.0.1:1", "http://[::1]:8080"]
        {
            assert!(is_loopback_origin(origin), "{origin}");
        }
        for origin in [
            "null",
            "http://localhost.evil.example",
            "http://localhost:",
            "http://localhost:1.evil.example",
            "file://localhost",
            "http://127.0.0.10",
        ] {
            assert!(!is_loopback_origin(origin), "{origin}");
        }
    }
}
