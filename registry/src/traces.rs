//! OpenTelemetry context of a request: the trace that it belongs to, and its span's standard attributes.
//! The embedding program exports spans. Until it calls `enable_traces`, this module does nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::{Status, TraceContextExt};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Enables tracing, once an exporter is installed.
pub fn enable_traces() {
    IS_ENABLED.store(true, Ordering::Relaxed);
}

/// Makes a request's span part of its client's trace. Call it before the span is entered.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    if !IS_ENABLED.load(Ordering::Relaxed) {
        return;
    }
    span.record("otel.kind", "server");
    if headers.contains_key("traceparent") {
        let parent =
            opentelemetry::global::get_text_map_propagator(|format| format.extract(&Headers(headers)));
        // Fails when spans are not exported.
        let _unsent = span.set_parent(parent);
    }
}

/// The headers that make the spans of an outgoing request part of the current request's trace.
pub(crate) fn trace_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    if IS_ENABLED.load(Ordering::Relaxed) {
        let context = Span::current().context();
        opentelemetry::global::get_text_map_propagator(|format| {
            format.inject_context(&context, &mut Fields(&mut headers));
        });
    }
    headers
}

/// Names a request's span by its route, and records its status.
pub(crate) fn name_span(span: &Span, method: &'static str, route: &str, status: StatusCode) {
    if !IS_ENABLED.load(Ordering::Relaxed) {
        return;
    }
    span.context().span().update_name(format!("{method} {route}"));
    span.set_attribute("http.request.method", method);
    span.set_attribute("http.route", route.to_owned());
    span.set_attribute("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        span.set_status(Status::error(""));
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct Fields<'a>(&'a mut HeaderMap);

impl Injector for Fields<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}
