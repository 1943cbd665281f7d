//! How settings of the registry and of workers are written: URLs of servers, and durations.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};
use url::Url;

const EXPECTED_URL: &str =
    "expected a URL that starts with http:// or https://, such as https://lode.example";

const SECOND: u128 = 1_000_000_000;
const DAY: u128 = 24 * 3600 * SECOND;
/// The units of durations in nanoseconds.
const UNITS: [(&str, u128); 7] = [
    ("d", DAY),
    ("h", 3600 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
    ("ms", SECOND / 1000),
    ("us", 1000),
    ("ns", 1),
];

/// Deserialises the URL of a server. Errors do not repeat the text, which may contain credentials.
pub fn deserialize_server_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
    server_url(&String::deserialize(deserializer)?)
}

/// Like [`deserialize_server_url`], for a setting that may be absent.
pub fn deserialize_server_url_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Url>, D::Error> {
    Option::<String>::deserialize(deserializer)?.as_deref().map(server_url).transpose()
}

fn server_url<E: Error>(text: &str) -> Result<Url, E> {
    let url = Url::parse(text).ok();
    // `lode.example:5000` is a URL with the scheme `lode.example`.
    url.filter(|url| matches!(url.scheme(), "http" | "https")).ok_or_else(|| E::custom(EXPECTED_URL))
}

/// Formats a duration in one unit, such as `30d`, `24h` or `250ms`. Every duration setting accepts it.
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    // Up to a day, hours are usual.
    let units = UNITS.iter().filter(|(unit, _)| *unit != "d" || nanos > DAY);
    match units.into_iter().find(|(_, size)| nanos.is_multiple_of(*size)) {
        Some((unit, size)) if nanos > 0 => format!("{}{unit}", nanos / size),
        _ => "0s".to_owned(),
    }
}

/// A duration setting: a number and a unit, or several of them.
pub mod duration {
    use super::{Deserialize, Deserializer, Duration, Error};

    pub(super) fn parse<E: Error>(text: &str) -> Result<Duration, E> {
        humantime::parse_duration(text).map_err(E::custom)
    }

    pub fn serialize<S: serde::Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&super::format_duration(*value))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse(&String::deserialize(deserializer)?)
    }
}

/// A duration setting that may be absent.
pub mod duration_option {
    use super::{Deserialize, Deserializer, Duration, duration};

    pub fn serialize<S: serde::Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => duration::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Option::<String>::deserialize(deserializer)?.as_deref().map(duration::parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let check = |text: &str, expect: &str| {
            let duration = humantime::parse_duration(text).unwrap();
            assert_eq!(format_duration(duration), expect, "{text}");
            assert_eq!(humantime::parse_duration(expect).unwrap(), duration);
        };
        check("0s", "0s");
        check("250ms", "250ms");
        check("1m 30s", "90s");
        check("5m", "5m");
        check("1h 1ns", "3600000000001ns");
        check("1day", "24h");
        check("36h", "36h");
        check("3days", "3d");
        check("400days", "400d");
    }

    #[test]
    fn the_url_of_a_server_has_its_scheme() {
        let read = |text: &str| {
            deserialize_server_url(serde_json::Value::from(text)).map_err(|error| error.to_string())
        };
        assert_eq!(read("https://lode.example").unwrap().as_str(), "https://lode.example/");
        for text in ["lode.example", "lode.example:5000", "localhost:5000", "10.0.0.7:5100", "ftp://x", ""] {
            assert_eq!(read(text), Err(EXPECTED_URL.to_owned()), "{text}");
        }
    }
}
