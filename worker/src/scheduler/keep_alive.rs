//! How long a model stays loaded after its last request, in the forms that ollama accepts. A number is
//! seconds, a text is a Go duration (`5m`, `1h30m`) or seconds, and a negative value means forever.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// Until another model needs the memory.
    Forever,
    /// For this long; zero unloads at once.
    For(Duration),
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a duration such as 300, 5m or -1")]
pub struct KeepAliveError(String);

/// Longer durations mean forever, which also prevents overflow of timestamps.
const MAX_SECONDS: f64 = 10.0 * 365.0 * 24.0 * 3600.0;

impl KeepAlive {
    fn seconds(seconds: f64) -> KeepAlive {
        if (0.0..=MAX_SECONDS).contains(&seconds) {
            KeepAlive::For(Duration::from_secs_f64(seconds))
        } else {
            KeepAlive::Forever
        }
    }
}

impl FromStr for KeepAlive {
    type Err = KeepAliveError;

    fn from_str(text: &str) -> Result<KeepAlive, KeepAliveError> {
        let seconds =
            text.parse::<f64>().ok().filter(|seconds| seconds.is_finite()).or_else(|| go_duration(text));
        seconds.map(KeepAlive::seconds).ok_or_else(|| KeepAliveError(text.to_owned()))
    }
}

/// Seconds of a Go duration: an optional sign, then numbers with their units.
fn go_duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|&at| at > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            // Not in Go, but our own settings accept it.
            "d" => 86400.0,
            _ => return None,
        };
        rest = &rest[letters..];
        seconds += number * unit;
    }
    Some(sign * seconds)
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeepAlive::Forever => f.write_str("-1"),
            KeepAlive::For(duration) => f.write_str(&lode_client::format_duration(*duration)),
        }
    }
}

impl Serialize for KeepAlive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeepAlive, D::Error> {
        struct Forms;

        impl Visitor<'_> for Forms {
            type Value = KeepAlive;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds or a duration")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<KeepAlive, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<KeepAlive, E> {
                Ok(KeepAlive::seconds(seconds as f64))
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<KeepAlive, E> {
                Ok(KeepAlive::seconds(seconds as f64))
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<KeepAlive, E> {
                Ok(KeepAlive::seconds(seconds))
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let check = |json: &str, expect: Option<f64>| {
            let got: KeepAlive = serde_json::from_str(json).unwrap();
            let expect =
                expect.map_or(KeepAlive::Forever, |seconds| KeepAlive::For(Duration::from_secs_f64(seconds)));
            assert_eq!(got, expect, "{json}");
        };
        check("0", Some(0.0));
        check("300", Some(300.0));
        check("1.5", Some(1.5));
        check("-1", None);
        check("-0.5", None);
        check("1e300", None);
        check("\"0\"", Some(0.0));
        check("\"30\"", Some(30.0));
        check("\"-1\"", None);
        check("\"10m\"", Some(600.0));
        check("\"1h30m\"", Some(5400.0));
        check("\"1.5h\"", Some(5400.0));
        check("\"250ms\"", Some(0.25));
        check("\"-1m\"", None);
        check("\"24h0m0s\"", Some(86400.0));
        for bad in [
            "\"\"",
            "\"x\"",
            "\"5\u{20ac}\"",
            "\"m\"",
            "\"5mm\"",
            "\"1h 30m\"",
            "\"nan\"",
            "\"-\"",
            "null",
            "[]",
            "\"..s\"",
        ] {
            assert!(serde_json::from_str::<KeepAlive>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prints_what_it_reads() {
        for text in ["-1", "5m", "1h30m", "0s", "250ms", "24h", "36h", "400d"] {
            let value: KeepAlive = text.parse().unwrap();
            assert_eq!(value.to_string().parse::<KeepAlive>().unwrap(), value);
        }
    }
}
