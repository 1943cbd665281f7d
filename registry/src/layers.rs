//! The middleware around the routes, outermost first. It is one service: each separate layer would cost a few
//! allocations per request and a copy of everything inside.

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use tower::util::MapRequestLayer;
use tower::{Layer, Service, ServiceExt};
use tracing::Instrument;

use crate::api::ollama;
use crate::auth::{Caller, Identity};
use crate::http::authenticate::authenticate;
use crate::http::challenge::Challenge;
use crate::http::compress::AcceptEncoding;
use crate::http::error::FailureExtension;
use crate::http::fold_name::fold_name;
use crate::http::observe::{RequestObserver, note_caller, note_route};
use crate::http::{Failure, body, cors, origin};
use crate::hub::assets;
use crate::surface::{Surface, format_failure};
use crate::{Error, Registry};

/// The server as one service.
#[derive(Clone)]
pub(crate) struct Layers {
    registry: Registry,
    routes: Router,
}

impl Layers {
    pub(crate) fn wrap(registry: Registry, routes: Router) -> Layers {
        Layers { registry, routes: routes.layer(MapRequestLayer::new(note_route)) }
    }

    pub(crate) fn respond(&self, mut request: Request) -> BoxFuture<'static, Response> {
        let this = self.clone();
        Box::pin(async move {
            let observed = RequestObserver::begin(&this.registry, &mut request);
            let span = observed.span();
            let id = observed.id();
            observed.end(this.respond_across_origins(request, id).instrument(span).await)
        })
    }

    /// Lets pages of allowed origins use the APIs with credentials that they send themselves. Cookies are removed.
    async fn respond_across_origins(self, request: Request, id: HeaderValue) -> Response {
        let (mut parts, body) = request.into_parts();
        let allowed = cors::foreign_origin(&parts)
            .filter(|origin| cors::is_allowed(self.registry.config(), origin))
            .and_then(|origin| HeaderValue::from_str(origin).ok());
        let Some(origin) = allowed else {
            return self.format_response(Request::from_parts(parts, body), id).await;
        };
        parts.headers.remove(header::COOKIE);
        let inner = tower::service_fn(move |request| {
            let (this, id) = (self.clone(), id.clone());
            async move { Ok::<_, Infallible>(this.format_response(request, id).await) }
        });
        let responding = cors::layer(origin).layer(inner).oneshot(Request::from_parts(parts, body));
        let result = Box::pin(responding).await;
        result.unwrap_or_else(|never| match never {})
    }

    /// Formats failures for the API of the request's path, and adds the headers that the API's clients expect.
    async fn format_response(self, request: Request, id: HeaderValue) -> Response {
        let surface = Surface::of(&request);
        let (parts, body) = request.into_parts();
        let challenge = match surface {
            Surface::Distribution | Surface::Ollama => Challenge::of(&self.registry, &parts),
            _ => None,
        };
        let request = Request::from_parts(parts, body);
        let accepted = AcceptEncoding::of(request.method(), request.headers());
        let response = body::guard(request, async |request| self.check_and_route(request).await);
        let result = AssertUnwindSafe(response).catch_unwind().await;
        let request_id = id.clone();
        let id = id.to_str().unwrap_or_default();
        let response = format_failure(surface, id, result.unwrap_or_else(|panic| panic_response(&*panic)));
        let mut response = accepted.compress(response).await;
        if response.status() == StatusCode::UNAUTHORIZED {
            response = challenge_response(surface, challenge.as_ref(), response);
        }
        if is_stream(&response) {
            // Otherwise nginx buffers the records.
            response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        }
        if surface == Surface::Anthropic {
            // Anthropic's clients include it in their errors.
            response.headers_mut().insert("request-id", request_id);
        }
        if surface == Surface::Distribution {
            response
                .headers_mut()
                .insert("docker-distribution-api-version", HeaderValue::from_static("registry/2.0"));
        }
        response
    }

    /// Refuses requests from other sites' pages and those with wrong credentials.
    async fn check_and_route(self, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        if let Err(failure) = origin::check(&self.registry, &parts) {
            return failure.into_response();
        }
        // A router that nests this one may have authenticated the request already.
        if parts.extensions.get::<Caller>().is_none() {
            match authenticate(&self.registry, &mut parts).await {
                Ok(caller) => {
                    note_caller(&parts, &caller);
                    parts.extensions.insert(caller)
                }
                Err(failure) => return failure.into_response(),
            };
        }
        if let Err(error) = check_rate(&self.registry, &parts) {
            return Failure::from(error).into_response();
        }
        match self.registry.is_in_setup().await {
            Ok(false) => {}
            // Boxed, so that the future of every request stays small.
            Ok(true) => match Box::pin(is_open_in_setup(&self.registry, &parts)).await {
                Ok(true) => {}
                Ok(false) => return Failure::from(Error::SetupPending).into_response(),
                Err(error) => return Failure::from(error).into_response(),
            },
            Err(error) => return Failure::from(error).into_response(),
        }
        let request = fold_name(Request::from_parts(parts, body));
        self.routes.oneshot(request).await.unwrap_or_else(|never| match never {})
    }
}

/// Whether the response is a stream of records, each sent as soon as it exists.
fn is_stream(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|value| [&b"application/x-ndjson"[..], b"text/event-stream"].contains(&value))
}

impl Service<Request> for Layers {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.respond(request).map(Ok).boxed()
    }
}

/// Returns an error if the caller sends too many requests. Probes are not limited.
fn check_rate(registry: &Registry, parts: &Parts) -> Result<(), Error> {
    let is_probe = ["/healthz", "/readyz"].contains(&parts.uri.path());
    match parts.extensions.get::<Caller>() {
        Some(caller) if !is_probe => registry.rate_limits().check(caller),
        _ => Ok(()),
    }
}

/// Whether a server in setup mode serves this request: a probe, the setup page, a request of its own worker, or a
/// report of a registered worker.
async fn is_open_in_setup(registry: &Registry, parts: &Parts) -> Result<bool, Error> {
    let path = parts.uri.path();
    if ["/healthz", "/readyz", "/setup"].contains(&path) || path.starts_with(assets::FOLDER) {
        return Ok(true);
    }
    let token = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = token.and_then(|text| text.strip_prefix("Bearer ")) else { return Ok(false) };
    Ok(match registry.sign_in_token(token, None).await? {
        Some(Identity::Internal) => true,
        Some(Identity::Worker { .. }) => path.starts_with("/lode/v1/workers/"),
        _ => false,
    })
}

/// Tells the client of a 401 response how to get credentials.
fn challenge_response(surface: Surface, challenge: Option<&Challenge>, mut response: Response) -> Response {
    match (surface, challenge, refusal(&response)) {
        (Surface::Distribution, Some(challenge), Some(error)) => {
            if let Some(header) = challenge.header(error) {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, header);
            }
            response
        }
        (Surface::Ollama, Some(challenge), _) => ollama::unauthorized(&challenge.sign_in_url(), response),
        (Surface::Lode, ..) => {
            // The CLI then sends its saved credentials.
            let basic = HeaderValue::from_static("Basic realm=\"lode\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
            response
        }
        _ => response,
    }
}

/// The registry's error behind a failed response, if there is one.
fn refusal(response: &Response) -> Option<&Error> {
    response.extensions().get::<FailureExtension>()?.0.error()
}

fn panic_response(panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Failure::Panic(text.unwrap_or("without a message").to_owned()).into_response()
}
