//! How settings are written: switches, address blocks, URLs whose secrets are redacted, secrets in files.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use lode_client::Secret;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::Url;

use crate::OpenError;

/// A setting that is on, off, or decided by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    #[default]
    Auto,
    On,
    Off,
}

impl Serialize for Switch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Switch::Auto => serializer.serialize_str("auto"),
            Switch::On => serializer.serialize_bool(true),
            Switch::Off => serializer.serialize_bool(false),
        }
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bool(bool),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bool(true) => Ok(Switch::On),
            Written::Bool(false) => Ok(Switch::Off),
            Written::Text(text) => match text.to_ascii_lowercase().as_str() {
                "auto" => Ok(Switch::Auto),
                "true" | "yes" | "on" | "1" => Ok(Switch::On),
                "false" | "no" | "off" | "0" => Ok(Switch::Off),
                _ => Err(serde::de::Error::custom("expected true, false or auto")),
            },
        }
    }
}

/// An address block such as `10.0.0.0/8`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(IpNet);

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not an address block such as 10.0.0.0/8")]
pub struct ConfigError(String);

impl Cidr {
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Cidr {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let block = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        block.map(Cidr).map_err(|_| ConfigError(text.to_owned()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Parts of query parameter names whose values are secret.
const SECRET_PARAMETER_WORDS: [&str; 5] = ["password", "token", "secret", "key", "sig"];

/// The URL with its secrets replaced by `***`.
pub(crate) fn redact_url(url: &Url) -> Url {
    let mut url = url.clone();
    if url.password().is_some() {
        // Cannot fail on a URL that has a password.
        let _ = url.set_password(Some("***"));
    }
    let is_secret =
        |name: &str| SECRET_PARAMETER_WORDS.iter().any(|word| name.to_ascii_lowercase().contains(word));
    let shown = url.query().map(|query| {
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{name}=***"),
            _ => pair.to_owned(),
        });
        pairs.collect::<Vec<_>>().join("&")
    });
    url.set_query(shown.as_deref());
    url
}

/// A URL that may contain credentials: redacted when serialised, and never repeated in a parse error.
pub(crate) mod address {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use url::{ParseError, Url};

    pub(crate) fn serialize<S: Serializer>(url: &Url, serializer: S) -> Result<S::Ok, S::Error> {
        super::redact_url(url).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
        read(&String::deserialize(deserializer)?)
    }

    pub(crate) fn read<E: Error>(text: &str) -> Result<Url, E> {
        let unusable = |error| {
            let advice = match error {
                ParseError::RelativeUrlWithoutBase => "start it with a scheme, such as https:// or file:///",
                _ => "in a password, write @ : / ? # and % as %40 %3A %2F %3F %23 %25",
            };
            E::custom(format!("not a URL: {error} ({advice})"))
        };
        Url::parse(text).map_err(unusable)
    }
}

pub(crate) mod address_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use url::Url;

    pub(crate) fn serialize<S: Serializer>(url: &Option<Url>, serializer: S) -> Result<S::Ok, S::Error> {
        url.as_ref().map(super::redact_url).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Url>, D::Error> {
        super::address::read(&String::deserialize(deserializer)?).map(Some)
    }
}

/// What an endpoint of object storage has to be.
pub(crate) const EXPECTED_ENDPOINT: &str =
    "expected a URL that starts with http:// or https://, such as http://minio:9000";

/// `minio:9000` is a URL, too, with the scheme `minio`.
pub(crate) fn is_endpoint(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
}

pub(crate) mod endpoint_option {
    use serde::{Deserialize, Deserializer, de::Error};
    use url::Url;

    pub(crate) use super::address_option::serialize;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Url>, D::Error> {
        let url = super::address::read(&String::deserialize(deserializer)?)?;
        if super::is_endpoint(&url) { Ok(Some(url)) } else { Err(D::Error::custom(super::EXPECTED_ENDPOINT)) }
    }
}

/// A secret of the settings, or of a file that they name.
pub(crate) fn secret(
    setting: &'static str,
    value: &Option<Secret>,
    file: &Option<PathBuf>,
) -> Result<Option<Secret>, OpenError> {
    let (None, Some(path)) = (value, file) else { return Ok(value.clone()) };
    let text = std::fs::read_to_string(path).map_err(|error| OpenError::Config {
        setting,
        reason: format!("failed to read {}: {error}", path.display()),
    })?;
    Ok(Some(Secret::new(text.trim_end_matches(['\r', '\n']))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_blocks() {
        let inside = |block: &str, address: &str| {
            block.parse::<Cidr>().map(|c| c.contains(address.parse().expect("test address"))).ok()
        };
        assert_eq!(inside("10.0.0.0/8", "10.200.1.1"), Some(true));
        assert_eq!(inside("10.0.0.0/8", "11.0.0.1"), Some(false));
        assert_eq!(inside("10.1.2.3", "10.1.2.3"), Some(true));
        assert_eq!(inside("10.1.2.3", "10.1.2.4"), Some(false));
        assert_eq!(inside("10.0.0.0/8", "::ffff:10.0.0.1"), Some(true));
        assert_eq!(inside("0.0.0.0/0", "1.2.3.4"), Some(true));
        assert_eq!(inside("::/0", "2001:db8::1"), Some(true));
        assert_eq!(inside("::/0", "1.2.3.4"), Some(false));
        assert_eq!(inside("2001:db8::/32", "2001:db8:1::1"), Some(true));
        for bad in ["10.0.0.0/33", "10.0.0/8", "x", "", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_are_shown_without_secrets() {
        let shown = |address: &str| redact_url(&address.parse().expect("test address")).to_string();
        assert_eq!(shown("postgres://lode:hush@db/lode"), "postgres://lode:***@db/lode");
        assert_eq!(
            shown(
                "postgres://db/lode?user=lode&password=hush&sslmode=verify-full&sslrootcert=/etc/ssl/db.pem"
            ),
            "postgres://db/lode?user=lode&password=***&sslmode=verify-full&sslrootcert=/etc/ssl/db.pem"
        );
        assert_eq!(
            shown("https://ci.example/hook?Access_Token=hush"),
            "https://ci.example/hook?Access_Token=***"
        );
        assert_eq!(shown("https://ci.example/hook?a&b=c"), "https://ci.example/hook?a&b=c");
    }
}
