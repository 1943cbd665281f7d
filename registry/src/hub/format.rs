//! Numbers, sizes and times as people read them.

use std::borrow::Borrow;

use lode_model::config::format_parameter_count;
use lode_model::digest::Digest;

use crate::time::{date, rfc3339};

/// `1.2 GB`: powers of a thousand, as in the listings of other clients.
pub(super) fn bytes(size: impl Borrow<u64>) -> String {
    let size = *size.borrow();
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if size < 1000 {
        return format!("{size} B");
    }
    let (mut value, mut unit) = (size as f64 / 1000.0, 0);
    // What rounds to a thousand belongs to the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    match value < 9.95 {
        true => format!("{value:.1} {}", UNITS[unit]),
        false => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// `8.0B`.
pub(super) fn parameters(count: impl Borrow<u64>) -> String {
    format_parameter_count(*count.borrow())
}

/// `131,072`.
pub(super) fn grouped(number: impl Borrow<u64>) -> String {
    let digits = number.borrow().to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `2026-11-23`.
pub(super) fn day(at: impl Borrow<i64>) -> String {
    date(*at.borrow())
}

/// `2026-11-23 18:00 UTC`.
pub(super) fn minute(at: impl Borrow<i64>) -> String {
    minute_of(&rfc3339(*at.borrow()))
}

/// The same of a time as the API writes it.
pub(super) fn minute_of(time: &str) -> String {
    let text: String = time.chars().take(16).collect();
    format!("{} UTC", text.replace('T', " "))
}

/// The first digits of a digest.
pub(super) fn short(digest: &Digest) -> String {
    let hex = digest.as_str().split_once(':').map_or(digest.as_str(), |(_, hex)| hex);
    hex.chars().take(12).collect()
}

/// `4096 × 256`.
pub(super) fn shape(shape: &[u64]) -> String {
    match shape {
        [] => "scalar".to_owned(),
        shape => shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" × "),
    }
}

/// A tag, or the first digits of a digest.
pub(super) fn reference(text: &str) -> String {
    match text.split_once(':') {
        Some((algorithm, hex)) => format!("{algorithm}:{}", hex.chars().take(12).collect::<String>()),
        None => text.to_owned(),
    }
}

/// A value in the query of an address.
pub(super) fn query(value: &str) -> String {
    url::form_urlencoded::byte_serialize(value.as_bytes()).collect()
}

/// The number and the noun for it.
pub(super) fn counted(count: impl Borrow<u64>, one: &str, many: &str) -> String {
    let count = *count.borrow();
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_numbers_are_readable() {
        let check = |size: u64, expect: &str| assert_eq!(bytes(size), expect);
        check(0, "0 B");
        check(999, "999 B");
        check(1000, "1.0 kB");
        check(9_960, "10 kB");
        check(999_499, "999 kB");
        check(999_600, "1.0 MB");
        check(4_700_000_000, "4.7 GB");
        check(u64::MAX, "18 EB");
        assert_eq!(grouped(0_u64), "0");
        assert_eq!(grouped(999_u64), "999");
        assert_eq!(grouped(131_072_u64), "131,072");
        assert_eq!(grouped(1_000_000_u64), "1,000,000");
        assert_eq!(counted(1_u64, "tag", "tags"), "1 tag");
        assert_eq!(counted(2_000_u64, "tag", "tags"), "2,000 tags");
    }
}
