//! Records each request as a span of the gateway's trace, from its arrival to the last byte of its response.
//! Without a collector, nothing is recorded.

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use http::HeaderMap;
use opentelemetry::propagation::Extractor;
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;

pub(super) async fn trace_request(request: Request, next: Next) -> Response {
    if !request.headers().contains_key("traceparent") {
        return next.run(request).await;
    }
    let path = request.uri().path();
    let span =
        tracing::info_span!("inference", path, otel.name = format!("POST {path}"), otel.kind = "server");
    let parent =
        opentelemetry::global::get_text_map_propagator(|format| format.extract(&Headers(request.headers())));
    // Fails if spans are not exported.
    let _unsent = span.set_parent(parent);
    let response = next.run(request).instrument(span.clone()).await;
    response.map(|body| {
        // The span ends with the stream that holds it.
        let bytes = body.into_data_stream().inspect(move |_| {
            let _until_the_end = &span;
        });
        Body::from_stream(bytes)
    })
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
