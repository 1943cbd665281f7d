//! The keys of a GGUF's architecture. Errors name the key.

use crate::convert::error::ConvertError;
use crate::gguf::{Metadata, Value};

#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&self.name(key))
    }

    /// A number of at most 32 bits, or a list with the same number for every layer.
    pub(super) fn optional(&self, key: &str) -> Result<Option<u64>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = match value.as_array() {
            Some(array) => {
                let mut all = array.iter().map(|value| value.as_u64());
                let first = all.next().flatten();
                if !all.all(|number| number == first) {
                    return Err(self.invalid(key, "the same number for all layers"));
                }
                first
            }
            None => value.as_u64(),
        };
        let number = number.filter(|number| u32::try_from(*number).is_ok());
        number.map(Some).ok_or_else(|| self.invalid(key, "a 32-bit number"))
    }

    /// A number that is at least 1.
    pub(super) fn count(&self, key: &str) -> Result<u64, ConvertError> {
        match self.optional(key)? {
            None => Err(self.missing(key)),
            Some(0) => Err(self.invalid(key, "at least 1")),
            Some(number) => Ok(number),
        }
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(|number| Some(decimal(number))).ok_or_else(|| self.invalid(key, "a finite number"))
    }

    pub(super) fn missing(&self, key: &str) -> ConvertError {
        ConvertError::MissingGgufKey { key: self.name(key) }
    }

    pub(super) fn invalid(&self, key: &str, expected: &'static str) -> ConvertError {
        let found = self.get(key).map(|value| value.to_json().to_string()).unwrap_or_default();
        ConvertError::GgufKey { key: self.name(key), found: found.chars().take(60).collect(), expected }
    }
}

/// The shortest decimal number that is this one in 32 bits: 1e-6 rather than 9.999999974752427e-7.
pub(super) fn decimal(number: f64) -> f64 {
    let short = number as f32;
    if f64::from(short) != number {
        return number;
    }
    short.to_string().parse().unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_shortest_form() {
        for number in [1e-6, 1e-5, 500_000.0, 0.1, 8.0, 1.190_238] {
            assert_eq!(decimal(f64::from(number as f32)), number);
        }
        assert_eq!(decimal(0.123_456_789_012), 0.123_456_789_012);
    }
}
