//! Sets up logging to standard error, as text or JSON. LODE_LOG selects the log lines.
//! [`start`] is called once, before the first log line.

use std::io::{IsTerminal, stderr};

use clap::ValueEnum;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::args::LogFormat;

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
pub(crate) fn start(default: &str, format: LogFormat, traces: Option<&SdkTracerProvider>) {
    let filter = std::env::var("LODE_LOG").ok().filter(|filter| !filter.is_empty());
    // sqlx logs notices of the database at each start.
    let filter = EnvFilter::new(filter.unwrap_or_else(|| format!("{default},sqlx=warn")));
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let lines = match format {
        // The spans contain the request id.
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).with_target(false).boxed(),
    };
    let spans = traces.map(crate::traces::layer);
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).init();
}
