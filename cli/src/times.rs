//! Times for people: how long ago on a terminal, and with their zone everywhere else.

use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    error::{Failure, Outcome},
    ui,
};

/// Times that are further away stand for "never": a model that stays loaded has such an expiry.
const FOREVER: Duration = Duration::days(100 * 365);

/// Shows an RFC 3339 time of the server. Another text is shown as it is.
pub(crate) fn show_time(text: &str) -> String {
    show_time_at(text, OffsetDateTime::now_utc(), ui::stdout_is_terminal())
}

/// Shows the time in a field of a JSON object, or `missing` if the object has no such field.
pub(crate) fn show_field(object: &serde_json::Value, key: &str, missing: &str) -> String {
    object[key].as_str().map_or_else(|| missing.to_owned(), show_time)
}

/// Reads a duration such as `12h`.
pub(crate) fn parse_duration(text: &str) -> Outcome<std::time::Duration> {
    humantime::parse_duration(text).map_err(|_| {
        Failure::new(format!("`{text}` is not a duration"))
            .hint("a duration is a number with a unit, such as 12h, 30d or 1year")
    })
}

/// `1 day`, `90 minutes`: the largest unit of which it is a multiple.
pub(crate) fn show_duration(seconds: u64) -> String {
    let units = [(86_400, "day"), (3_600, "hour"), (60, "minute")];
    let whole = units.into_iter().find(|(length, _)| seconds >= *length && seconds.is_multiple_of(*length));
    let (length, unit) = whole.unwrap_or((1, "second"));
    ui::counted(seconds / length, unit)
}

fn show_time_at(text: &str, now: OffsetDateTime, on_terminal: bool) -> String {
    let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) else { return text.to_owned() };
    if on_terminal {
        return relative(at - now);
    }
    let seconds = at.replace_nanosecond(0).unwrap_or(at);
    seconds.format(&Rfc3339).unwrap_or_else(|_| text.to_owned())
}

/// `2 hours ago`, `in 5 minutes`: one unit, rounded down.
fn relative(distance: Duration) -> String {
    if distance > FOREVER {
        return "never".to_owned();
    }
    let seconds = distance.whole_seconds().unsigned_abs();
    const UNITS: [(u64, &str); 6] = [
        (365 * 86_400, "year"),
        (30 * 86_400, "month"),
        (86_400, "day"),
        (3_600, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let Some((length, unit)) = UNITS.into_iter().find(|(length, _)| seconds >= *length) else {
        return "now".to_owned();
    };
    let amount = ui::counted(seconds / length, unit);
    if distance.is_negative() { format!("{amount} ago") } else { format!("in {amount}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let shown = [0, 1, 90, 120, 5400, 7200, 86_400, 90_000].map(show_duration);
        let expect = [
            "0 seconds",
            "1 second",
            "90 seconds",
            "2 minutes",
            "90 minutes",
            "2 hours",
            "1 day",
            "25 hours",
        ];
        assert_eq!(shown, expect);
    }

    #[test]
    fn terminals_show_how_long_ago() {
        let now = OffsetDateTime::parse("2026-11-25T12:00:00Z", &Rfc3339).unwrap();
        let check = |text: &str, on_terminal: &str, elsewhere: &str| {
            assert_eq!(show_time_at(text, now, true), on_terminal, "{text}");
            assert_eq!(show_time_at(text, now, false), elsewhere, "{text}");
        };
        check("2026-11-25T10:00:00.123456Z", "1 hour ago", "2026-11-25T10:00:00Z");
        check("2026-11-25T09:59:59Z", "2 hours ago", "2026-11-25T09:59:59Z");
        check("2026-11-25T12:00:00Z", "now", "2026-11-25T12:00:00Z");
        check("2026-11-25T11:59:59Z", "1 second ago", "2026-11-25T11:59:59Z");
        check("2026-11-25T13:05:00+01:00", "in 5 minutes", "2026-11-25T13:05:00+01:00");
        check("2026-11-24T12:00:00Z", "1 day ago", "2026-11-24T12:00:00Z");
        check("2026-09-01T12:00:00Z", "2 months ago", "2026-09-01T12:00:00Z");
        check("2024-11-01T12:00:00Z", "2 years ago", "2024-11-01T12:00:00Z");
        check("2318-01-01T00:00:00Z", "never", "2318-01-01T00:00:00Z");
        check("yesterday", "yesterday", "yesterday");
    }
}
