//! The server's clock, in milliseconds, and the time format of every API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::time::OffsetDateTime;
use ::time::format_description::well_known::Rfc3339;
use serde::{Serialize, Serializer};

pub(crate) const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Milliseconds since 1970, by this machine's clock.
pub(crate) fn now_ms() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}

/// A duration in milliseconds.
pub(crate) fn millis(duration: Duration) -> i64 {
    // Half the range, so that adding it to a time cannot overflow.
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

/// Formats milliseconds since 1970 as RFC 3339.
pub(crate) fn rfc3339(millis: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000);
    time.ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}

/// The day of a time in milliseconds since 1970, in UTC: `2026-11-27`.
pub(crate) fn date(millis: i64) -> String {
    rfc3339(millis).chars().take(10).collect()
}

/// A time in JSON.
pub(crate) fn as_rfc3339<S: Serializer>(millis: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&rfc3339(*millis))
}

/// A time in JSON, or null.
pub(crate) fn as_rfc3339_option<S: Serializer>(
    millis: &Option<i64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    millis.map(rfc3339).serialize(serializer)
}

#[cfg(test)]
mod tests {
    #[test]
    fn written() {
        assert_eq!(super::rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(super::rfc3339(i64::MAX), "");
        assert_eq!(super::date(1_700_000_000_123), "2023-11-14");
    }
}
