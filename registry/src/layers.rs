//! The middleware around the routes, outermost first, in one service: separate layers would each cost every
//! request a few allocations and a copy of everything inside.

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderValue;
use tower::util::MapRequestLayer;
use tower::{Service, ServiceExt};
use tracing::Instrument;

use crate::Registry;
use crate::http::compress::AcceptEncoding;
use crate::http::fold_name::fold_name;
use crate::http::observe::{RequestObserver, note_route};
use crate::http::{Failure, body, origin};
use crate::surface::{Surface, format_failure};

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
            observed.end(this.format_response(request, id).instrument(span).await)
        })
    }

    /// Formats failures for the API of the request's path. Docker's clients expect the header on `/v2/`.
    async fn format_response(self, request: Request, id: HeaderValue) -> Response {
        let surface = Surface::of(request.uri().path());
        let accepted = AcceptEncoding::of(request.method(), request.headers());
        let result = AssertUnwindSafe(self.check_and_route(request)).catch_unwind().await;
        let id = id.to_str().unwrap_or_default();
        let response = format_failure(surface, id, result.unwrap_or_else(|panic| panic_response(&*panic)));
        let mut response = accepted.compress(response).await;
        if surface == Surface::Distribution {
            response
                .headers_mut()
                .insert("docker-distribution-api-version", HeaderValue::from_static("registry/2.0"));
        }
        response
    }

    /// Refuses requests from other sites' pages, and guards the body of all others.
    async fn check_and_route(self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        if let Err(failure) = origin::check(&self.registry, &parts) {
            return failure.into_response();
        }
        let request = fold_name(Request::from_parts(parts, body));
        let result = body::guard(request, |request| self.routes.oneshot(request)).await;
        result.unwrap_or_else(|never| match never {})
    }
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

fn panic_response(panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Failure::Panic(text.unwrap_or("without a message").to_owned()).into_response()
}
