//! Sets up logging to standard error, as text or JSON. LODE_LOG selects the log lines.
//! [`start`] is called once, before the first log line.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    args::LogFormat,
    error::{CANNOT_RUN, Failure, Outcome, chain},
    suggest::closest,
};

/// The levels of a filter, from none to all.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
const FORMAT: &str = "LODE_LOG_FORMAT";

/// The format of a command that has no flag for it.
pub(crate) fn inherited_format() -> LogFormat {
    let named = std::env::var(FORMAT).ok();
    named.and_then(|name| LogFormat::from_str(&name, true).ok()).unwrap_or_default()
}

/// The environment variables that make a child process log in the same format.
pub(crate) fn inherited_env(format: LogFormat) -> Vec<(String, String)> {
    let name = format.to_possible_value().map(|value| value.get_name().to_owned());
    name.map(|name| (FORMAT.to_owned(), name)).into_iter().collect()
}

/// Starts logging. `default` is the level without LODE_LOG. Spans are sent to `traces` regardless of the
/// level.
pub(crate) fn start(default: &str, format: LogFormat, traces: Option<&SdkTracerProvider>) -> Outcome {
    let set = std::env::var("LODE_LOG").ok().filter(|text| !text.is_empty());
    let filter = match set {
        Some(text) => parse_filter(&text)?,
        // sqlx logs notices of the database at each start.
        None => EnvFilter::new(format!("{default},sqlx=warn")),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let lines = match format {
        // The spans contain the request id.
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).with_target(false).boxed(),
    };
    let spans = traces.map(crate::traces::layer);
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).init();
    Ok(())
}

/// Parses the value of LODE_LOG. A misspelled level would be the name of a module that logs nothing.
fn parse_filter(text: &str) -> Outcome<EnvFilter> {
    let invalid = |why: &str| {
        Failure::new(format!("LODE_LOG is `{text}`: {why}"))
            .hint(format!(
                "a level is {}; `info,lode_registry=debug` sets another one for a module",
                LEVELS.join(", ")
            ))
            .code(CANNOT_RUN)
    };
    for part in text.split(',').map(str::trim) {
        let is_like = |level: &&&str| part.starts_with(**level) || closest(part, [**level]).is_some();
        let is_level = LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
        if let Some(level) = LEVELS.iter().find(is_like).filter(|_| !is_level && !part.contains('=')) {
            return Err(invalid(&format!("`{part}` is not a level; did you mean `{level}`?")));
        }
    }
    EnvFilter::builder().parse(text).map_err(|error| invalid(&chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_the_filter_are_refused() {
        for text in [
            "info",
            "WARN",
            "info,lode_access=off",
            "lode_registry=debug",
            "sqlx",
            "lode[request]=trace",
            "3",
        ] {
            assert!(parse_filter(text).is_ok(), "{text}");
        }
        let message = |text: &str| parse_filter(text).unwrap_err().to_string();
        for (text, level) in [("debgu", "debug"), ("info,warning", "warn"), ("inof", "info")] {
            assert!(message(text).contains(&format!("did you mean `{level}`?")), "{}", message(text));
        }
        for text in ["lode_registry=loud", "a=b=c", "info,!"] {
            assert!(
                message(text).starts_with(&format!("error: LODE_LOG is `{text}`: ")),
                "{}",
                message(text)
            );
        }
    }
}
