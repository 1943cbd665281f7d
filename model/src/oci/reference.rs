//! The names of models: repositories, tags, references, and the full name that a person types. They are
//! parsed once at the edge; code behind it only handles valid values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, DigestError};

/// The longest repository name, in bytes. Many clients cap host and name together at 255.
pub const MAX_REPOSITORY_LEN: usize = 255;
/// The longest tag, in bytes (OCI distribution, `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`).
pub const MAX_TAG_LEN: usize = 128;
/// The tag of a name without one.
pub const DEFAULT_TAG: &str = "latest";

/// Why a text is not a valid name, repository, tag or reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error(
        "`{text}` is not a repository name (expected parts of lower-case letters and digits, joined by `.`, `_`, `__` or `-`, between slashes)"
    )]
    Repository { text: String },
    #[error("repository name has {len} bytes, expected at most {MAX_REPOSITORY_LEN}")]
    RepositoryTooLong { len: usize },
    #[error(
        "`{text}` is not a tag (expected at most {MAX_TAG_LEN} letters, digits, `_`, `.` and `-`, not starting with `.` or `-`)"
    )]
    Tag { text: String },
    #[error("`{text}` is not a host (expected a name or address, then an optional `:port`)")]
    Host { text: String },
    #[error(transparent)]
    Digest(#[from] DigestError),
}

/// A repository: any number of path parts, as OCI allows. No part is implied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Repository(Box<str>);

/// A tag, the part of a name that can move.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tag(Box<str>);

/// A tag or digest, which selects a manifest within a repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Reference {
    Tag(Tag),
    Digest(Digest),
}

/// A full name, `[host[:port]/]repository[:tag|@digest]`. By docker's rule, the first part is a host only if
/// it contains `.` or `:` or is `localhost`. The tag defaults to `latest`; a digest takes precedence over a
/// tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name {
    pub host: Option<String>,
    pub repository: Repository,
    pub reference: Reference,
}

impl Repository {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Tag {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tag {
    fn default() -> Tag {
        Tag(DEFAULT_TAG.into())
    }
}

impl FromStr for Repository {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.len() > MAX_REPOSITORY_LEN {
            return Err(ReferenceError::RepositoryTooLong { len: text.len() });
        }
        if !text.split('/').all(is_path_part) {
            return Err(ReferenceError::Repository { text: text.to_owned() });
        }
        Ok(Repository(text.into()))
    }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_path_part(part: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut rest = part.as_bytes();
    loop {
        let word = rest.iter().take_while(|b| is_word(**b)).count();
        if word == 0 {
            return false;
        }
        rest = &rest[word..];
        if rest.is_empty() {
            return true;
        }
        let separator = rest.iter().take_while(|b| !is_word(**b)).count();
        match &rest[..separator] {
            b"." | b"_" | b"__" => {}
            dashes if dashes.iter().all(|b| *b == b'-') => {}
            _ => return false,
        }
        rest = &rest[separator..];
    }
}

impl FromStr for Tag {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let is_first = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let fits = text.len() <= MAX_TAG_LEN
            && text.bytes().next().is_some_and(is_first)
            && text.bytes().all(|b| is_first(b) || b == b'.' || b == b'-');
        if !fits {
            return Err(ReferenceError::Tag { text: text.chars().take(MAX_TAG_LEN + 1).collect() });
        }
        Ok(Tag(text.into()))
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    /// A text with a colon is a digest, any other a tag.
    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.contains(':') {
            Ok(Reference::Digest(text.parse()?))
        } else {
            Ok(Reference::Tag(text.parse()?))
        }
    }
}

impl FromStr for Name {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let (host, rest) = match text.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (Some(first), rest),
            _ => (None, text),
        };
        if let Some(host) = host
            && !is_host(host)
        {
            return Err(ReferenceError::Host { text: host.to_owned() });
        }
        let (path, digest) = match rest.split_once('@') {
            Some((path, digest)) => (path, Some(digest.parse::<Digest>()?)),
            None => (rest, None),
        };
        let (repository, tag) = match path.split_once(':') {
            Some((repository, tag)) => (repository, Some(tag.parse::<Tag>()?)),
            None => (path, None),
        };
        Ok(Name {
            host: host.map(str::to_owned),
            repository: repository.parse()?,
            reference: match digest {
                Some(digest) => Reference::Digest(digest),
                None => Reference::Tag(tag.unwrap_or_default()),
            },
        })
    }
}

/// A DNS name, an IPv4 address or an IPv6 address in brackets, with an optional port.
fn is_host(text: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            address.parse::<std::net::Ipv6Addr>().is_ok()
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        });
    }
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label) && port.is_none_or(is_port)
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Tag(tag) => tag.fmt(f),
            Reference::Digest(digest) => digest.fmt(f),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(host) = &self.host {
            write!(f, "{host}/")?;
        }
        match &self.reference {
            Reference::Tag(tag) => write!(f, "{}:{tag}", self.repository),
            Reference::Digest(digest) => write!(f, "{}@{digest}", self.repository),
        }
    }
}

/// The serde conversions that the string-like types share.
macro_rules! string_conversions {
    ($($type:ident),*) => {$(
        impl TryFrom<String> for $type {
            type Error = ReferenceError;

            fn try_from(text: String) -> Result<Self, ReferenceError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    )*};
}
string_conversions!(Repository, Tag, Reference, Name);
string_schema!(Repository, "A repository: any number of parts, such as `team/mini`");
string_schema!(Tag, "A tag, such as `latest`");
string_schema!(Reference, "A tag, or a digest: `sha256:` and 64 hexadecimal digits");
string_schema!(Name, "A model: `team/mini:v1`, or `team/mini@sha256:...`");

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn repositories() {
        for text in
            ["a", "acme/llama", "team/blobs", "a/b/c/d/e", "a.b_c__d-e---f/0", "library/x", "v2", "a--b"]
        {
            assert_eq!(text.parse::<Repository>().expect(text).as_str(), text);
        }
        for text in [
            "", "/", "a/", "/a", "a//b", "A", "a_", "_a", "a..b", "a___b", "a.-b", "-a", "a-", "a b", "é",
            "a:b", "a@b", "a/../b",
        ] {
            assert!(text.parse::<Repository>().is_err(), "{text}");
        }
        assert!("a".repeat(255).parse::<Repository>().is_ok());
        assert_eq!(
            "a".repeat(256).parse::<Repository>(),
            Err(ReferenceError::RepositoryTooLong { len: 256 })
        );
    }

    #[test]
    fn tags() {
        for text in ["latest", "_", "8B-q4_K.M", "0", &"x".repeat(128)] {
            assert_eq!(text.parse::<Tag>().expect(text).as_str(), text);
        }
        for text in ["", ".a", "-a", "a/b", "a:b", "a b", "ä", &"x".repeat(129)] {
            assert!(text.parse::<Tag>().is_err(), "{text}");
        }
    }

    #[test]
    fn references() {
        assert!(matches!("latest".parse(), Ok(Reference::Tag(_))));
        assert!(matches!(format!("sha256:{}", "a".repeat(64)).parse(), Ok(Reference::Digest(_))));
        assert!(matches!("sha256:baddigeststring".parse::<Reference>(), Err(ReferenceError::Digest(_))));
    }

    #[test]
    fn names() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, host, repository, reference) in [
            ("llama", None, "llama", "latest"),
            ("llama:8b", None, "llama", "8b"),
            ("acme/llama:8b", None, "acme/llama", "8b"),
            ("foo.bar:8b", None, "foo.bar", "8b"),
            ("localhost/x", Some("localhost"), "x", "latest"),
            ("localhost:5000/a/b:c", Some("localhost:5000"), "a/b", "c"),
            ("hub.local/acme/llama", Some("hub.local"), "acme/llama", "latest"),
            ("[::1]:5000/a", Some("[::1]:5000"), "a", "latest"),
            (&format!("127.0.0.1:5000/a@{digest}"), Some("127.0.0.1:5000"), "a", &digest),
            (&format!("a:tag@{digest}"), None, "a", &digest),
        ] {
            let name: Name = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(name.host.as_deref(), host, "{text}");
            assert_eq!(name.repository.as_str(), repository, "{text}");
            assert_eq!(name.reference.to_string(), reference, "{text}");
        }
        for text in [
            "",
            ":",
            "a:",
            "a@",
            "a@b",
            "a:b:c",
            "host:port/a",
            "host:99999/a",
            "host:/a",
            "http://h/a",
            ".a/b",
            "a./b",
            "LLAMA",
            "user@h.x/a",
            "[::1/a",
            "[x]:1/a",
            "h.x/",
            "a:b/c",
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }

    fn part() -> impl Strategy<Value = String> {
        "[a-z0-9]{1,8}((\\.|_|__|-{1,3})[a-z0-9]{1,5}){0,2}"
    }

    proptest! {
        #[test]
        fn print_then_parse(
            host in proptest::option::of("localhost(:[1-9][0-9]{0,3})?|[a-z]{1,5}\\.[a-z]{1,5}(:[1-9][0-9]{0,3})?"),
            parts in proptest::collection::vec(part(), 1..4),
            tag in "[a-zA-Z0-9_][a-zA-Z0-9._-]{0,20}",
            digest in proptest::option::of("[0-9a-f]{64}"),
        ) {
            // Without a host, a first part that looks like one would be read as one: that is docker's rule.
            let looks_like_host = parts.len() > 1 && (parts[0].contains('.') || parts[0] == "localhost");
            prop_assume!(host.is_some() || !looks_like_host);
            let name = Name {
                host,
                repository: parts.join("/").parse().unwrap(),
                reference: match digest {
                    Some(hex) => format!("sha256:{hex}").parse().unwrap(),
                    None => tag.parse().unwrap(),
                },
            };
            prop_assert_eq!(name.to_string().parse::<Name>(), Ok(name));
        }

        #[test]
        fn parse_never_panics(text in "\\PC*|[a-z:@/.\\[\\]]*") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert_eq!(name.to_string().parse::<Name>(), Ok(name));
            }
        }
    }
}
