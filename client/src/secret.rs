//! Text that is never printed.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use subtle::ConstantTimeEq;

/// A password, key or token from the settings. Printed and serialised as `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether `shown` is this secret. The comparison takes the same time wherever the texts differ, but not
    /// for texts of different lengths.
    pub fn matches(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_text_matches() {
        let secret = Secret::new("abc");
        assert!(secret.matches("abc"));
        for other in ["", "ab", "abcd", "abd", "Abc"] {
            assert!(!secret.matches(other), "{other}");
        }
    }
}
