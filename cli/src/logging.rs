//! Where log lines go, and what they look like: standard error, as text or as JSON. LODE_LOG says which of them.
//! Called once, before anything is logged.

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

/// What a process that this one starts needs in its environment to log as this one does, however that was said.
pub(crate) fn inheritance(format: LogFormat) -> Vec<(String, String)> {
    let name = format.to_possible_value().map(|value| value.get_name().to_owned());
    name.map(|name| (FORMAT.to_owned(), name)).into_iter().collect()
}

/// `default`: what is logged where LODE_LOG does not say. Spans go to `traces` whatever is logged.
pub(crate) fn start(default: &str, format: LogFormat, traces: Option<&SdkTracerProvider>) {
    let filter = std::env::var("LODE_LOG").ok().filter(|filter| !filter.is_empty());
    // The database's notices at each start are nobody's business.
    let filter = EnvFilter::new(filter.unwrap_or_else(|| format!("{default},sqlx=warn")));
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let lines = match format {
        // The spans carry the request's id.
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text => lines.with_ansi(stderr().is_terminal()).with_target(false).boxed(),
    };
    let spans = traces.map(crate::traces::layer);
    tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).init();
}
