//! Observability of requests: each gets an id and a span, is counted and measured, and is logged once.
//! Metrics use the route, not the path; only the log has the path.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{ConnectInfo, MatchedPath, Request};
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use hyper::body::{Frame, SizeHint};
use tracing::Span;
use uuid::Uuid;

use super::Failure;
use super::access_log::AccessRecord;
use super::arrival::RequestArrival;
use super::error::FailureExtension;
use super::forwarded;
use crate::auth::Caller;
use crate::error::chain;
use crate::{Error, Registry, metrics, traces};

const REQUEST_ID: &str = "x-request-id";
const MAX_ID_LEN: usize = 128;

/// A response up to this size is counted as sent when it is passed to the connection.
const SMALL_BYTES: u64 = 64 * 1024;

/// The id of a request, in its extensions.
#[derive(Clone)]
pub(crate) struct RequestId(pub(crate) HeaderValue);

/// The template of the route that a request matches.
#[derive(Clone, Default)]
struct MatchedRoute(Arc<OnceLock<MatchedPath>>);

/// Who sends a request, for the access log.
#[derive(Clone, Default)]
struct KnownCaller(Arc<OnceLock<Caller>>);

/// Records who sends the request.
pub(crate) fn note_caller(parts: &Parts, caller: &Caller) {
    if let Some(known) = parts.extensions.get::<KnownCaller>() {
        let _known = known.0.set(caller.clone());
    }
}

/// Runs inside the router, where the route is known.
pub(crate) fn note_route(request: Request) -> Request {
    let extensions = request.extensions();
    if let (Some(reached), Some(route)) = (extensions.get::<MatchedRoute>(), extensions.get::<MatchedPath>())
    {
        // Already set if a route's own service has layers of its own.
        let _known = reached.0.set(route.clone());
    }
    request
}

/// A request in progress.
pub(crate) struct RequestObserver {
    started: Instant,
    id: HeaderValue,
    method: Method,
    reached: MatchedRoute,
    /// `None` if the request is not logged.
    access: Option<(Box<AccessRecord>, KnownCaller)>,
    span: Span,
    _in_flight: InFlight,
}

impl RequestObserver {
    pub(crate) fn begin(registry: &Registry, request: &mut Request) -> RequestObserver {
        let started = Instant::now();
        let _in_flight = InFlight::new();
        let id = request_id(request.headers());
        let method = request.method().clone();
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
        let client =
            forwarded::forwarded_info(request.headers(), &registry.config().trusted_proxies, peer).client;
        // Level error, so that no filter drops the id from a log line.
        let span = tracing::error_span!(
            "request",
            // Written unquoted, which costs half as much.
            request_id = %id.to_str().unwrap_or_default(),
            %method,
            path = %LogText(request.uri().path()),
            client = client.map(tracing::field::display),
            otel.kind = tracing::field::Empty,
        );
        traces::continue_trace(&span, request.headers());
        let reached = MatchedRoute::default();
        request.extensions_mut().insert(reached.clone());
        request.extensions_mut().insert(RequestId(id.clone()));
        let access = registry.config().access_log.then(|| {
            let (path, headers) = (request.uri().path(), request.headers());
            let arrival = request.extensions().get::<RequestArrival>();
            let is_internal = arrival.is_some_and(|arrival| arrival.internal);
            AccessRecord::begin(&method, path, headers, client, &id, is_internal)
        });
        let access = access.flatten().map(|record| (record, KnownCaller::default()));
        if let Some((_, caller)) = &access {
            request.extensions_mut().insert(caller.clone());
        }
        RequestObserver { started, id, method, reached, access, span, _in_flight }
    }

    pub(crate) fn id(&self) -> HeaderValue {
        self.id.clone()
    }

    /// The span for everything that handles the request.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Counts, measures and logs the response.
    pub(crate) fn end(self, mut response: Response) -> Response {
        let RequestObserver { started, id, method, reached, access, span, .. } = self;
        let status = response.status();
        let route = reached.0.get().map_or("none", MatchedPath::as_str);
        let method_label = metrics::method_label(&method);
        metrics::record_request(route, method_label, status, started.elapsed());
        traces::name_span(&span, method_label, route, status);
        span.in_scope(|| log(&response, status, started));
        response.headers_mut().insert(REQUEST_ID, id);
        let access = access.map(|(mut record, caller)| {
            record.respond(status, caller.0.get());
            record
        });
        count_sent(&method, response, access)
    }
}

/// Text that is quoted only if it needs escaping.
struct LogText<'a>(&'a str);

impl fmt::Display for LogText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"') {
            true => f.write_str(self.0),
            false => fmt::Debug::fmt(self.0, f),
        }
    }
}

/// Logs one line per response: an error for server errors, otherwise at debug level.
fn log(response: &Response, status: StatusCode, started: Instant) {
    let duration_ms = started.elapsed().as_millis() as u64;
    let failed = response.extensions().get::<FailureExtension>();
    let status = status.as_u16();
    let is_error = |failure: &Failure| status >= 500 && !matches!(failure.error(), Some(Error::SetupPending));
    match failed {
        Some(failed) if is_error(&failed.0) => {
            tracing::error!(status, duration_ms, error = chain(&*failed.0), "request failed")
        }
        Some(failed) => tracing::debug!(status, duration_ms, reason = chain(&*failed.0), "request refused"),
        None => tracing::debug!(status, duration_ms, "request completed"),
    }
}

/// The id that a proxy or a client gave the request, if it is safe to log; otherwise a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let fit = |value: &&HeaderValue| {
        let bytes = value.as_bytes();
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:+/=@".contains(byte);
        (1..=MAX_ID_LEN).contains(&bytes.len()) && bytes.iter().all(plain)
    };
    let ours = || {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        super::links::header_value(Uuid::now_v7().hyphenated().encode_lower(&mut text))
    };
    headers.get(REQUEST_ID).filter(fit).cloned().unwrap_or_else(ours)
}

/// Counts a request without a response; the drop also covers disconnected clients.
struct InFlight(&'static ::metrics::Gauge);

impl InFlight {
    fn new() -> InFlight {
        let gauge = metrics::requests_in_flight();
        gauge.increment(1);
        InFlight(gauge)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

fn count_sent(method: &Method, response: Response, mut access: Option<Box<AccessRecord>>) -> Response {
    let sent = metrics::bytes_sent();
    let size = if method == Method::HEAD { Some(0) } else { response.body().size_hint().exact() };
    match size {
        Some(size) if size <= SMALL_BYTES => {
            sent.increment(size);
            if let Some(record) = &mut access {
                record.add_bytes(size);
                record.complete();
            }
            response
        }
        size => response.map(|body| Body::new(CountedBody { body, sent, size, access })),
    }
}

/// A body that counts its bytes as they are sent.
struct CountedBody {
    body: Body,
    sent: &'static ::metrics::Counter,
    /// The size of the whole body, if it is known.
    size: Option<u64>,
    access: Option<Box<AccessRecord>>,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.sent.increment(bytes);
            if let Some(record) = &mut self.access {
                record.add_bytes(bytes);
            }
        }
        if let Poll::Ready(None) = &polled {
            self.complete();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl CountedBody {
    fn complete(&mut self) {
        if let Some(record) = &mut self.access {
            record.complete();
        }
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        // A connection does not poll a body again whose end it knows.
        let sent = self.access.as_ref().map(|record| record.bytes());
        if self.body.is_end_stream() || self.size.is_some_and(|size| sent >= Some(size)) {
            self.complete();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_break_a_line_of_the_log() {
        assert_eq!(LogText("/v2/team%2Fa/tags/list").to_string(), "/v2/team%2Fa/tags/list");
        assert_eq!(LogText("/a\u{85}b").to_string(), "\"/a\\u{85}b\"");
        assert_eq!(LogText("/\"").to_string(), "\"/\\\"\"");
    }

    #[test]
    fn a_request_id_is_kept_if_it_is_safe_to_log() {
        let given = |text: &str| {
            let headers =
                HeaderMap::from_iter([(http::HeaderName::from_static(REQUEST_ID), text.parse().unwrap())]);
            request_id(&headers).to_str().unwrap() == text
        };
        for good in ["1", "0190a4c4-2f3e-7abc-8def-0123456789ab", "Root=1-67891233-abc/def+0@x:y.z_"] {
            assert!(given(good), "{good}");
        }
        for bad in ["", "a b", "a\"b", "a\\b", "{}", "x".repeat(129).as_str()] {
            assert!(!given(bad), "{bad}");
        }
        assert!(request_id(&HeaderMap::new()).to_str().unwrap().parse::<Uuid>().is_ok());
    }
}
