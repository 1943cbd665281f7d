//! A size in a setting: a number of bytes such as `16777216`, or a number with a unit such as `16MiB` or `16MB`.

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a number of bytes such as 16777216, 16MiB or 16MB")]
pub struct ByteSizeError(String);

impl ByteSize {
    pub const fn mib(count: u64) -> ByteSize {
        ByteSize(count << 20)
    }

    /// The size as a `usize`, saturating.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<ByteSize, ByteSizeError> {
        let error = || ByteSizeError(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &trimmed[digits.len()..];
        let factor = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            unit => {
                let known =
                    |name: &str| [name, &name[..1]].iter().any(|name| name.eq_ignore_ascii_case(unit));
                UNITS.iter().find(|(name, _)| known(name)).map(|(_, factor)| *factor).ok_or_else(error)?
            }
        };
        let count: u64 = digits.trim().parse().map_err(|_| error())?;
        count.checked_mul(factor).map(ByteSize).ok_or_else(error)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
        struct NumberOrText;

        impl Visitor<'_> for NumberOrText {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes such as 16777216, 16MiB or 16MB")
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                let unexpected = serde::de::Unexpected::Signed(bytes);
                u64::try_from(bytes).map(ByteSize).map_err(|_| E::invalid_value(unexpected, &self))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(NumberOrText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let bytes = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
        for (text, expect) in [
            ("0", 0),
            ("17", 17),
            ("17b", 17),
            ("2KiB", 2048),
            ("16 MiB", 16 << 20),
            ("3g", 3 << 30),
            ("1MB", 1_000_000),
            ("2kb", 2000),
        ] {
            assert_eq!(bytes(text), Some(expect), "{text}");
        }
        for bad in ["", "MiB", "-1", "1.5MiB", "1x", "99999999999TiB"] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
        for (size, text) in [
            (0, "0"),
            (1000, "1kB"),
            (1001, "1001"),
            (5_000_000, "5MB"),
            (2048, "2KiB"),
            (64 << 20, "64MiB"),
            (1 << 30, "1GiB"),
        ] {
            assert_eq!(ByteSize(size).to_string(), text);
        }
        assert_eq!(serde_json::from_str::<ByteSize>("7").unwrap(), ByteSize(7));
        assert_eq!(serde_json::from_str::<ByteSize>("\"7KiB\"").unwrap(), ByteSize(7168));
        assert!(serde_json::from_str::<ByteSize>("-7").is_err());
    }
}
