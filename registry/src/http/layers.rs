//! The middleware of the whole server, in one function, outermost first.
//! `router` wraps every route in it. Each layer costs every request, so what belongs together is one.

use std::any::Any;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;

use super::error::word;
use super::fold_name::fold_name;
use super::{Failure, body, observe, origin};
use crate::Registry;

pub(crate) fn wrap(registry: Registry, routes: Router) -> Router {
    let stack = ServiceBuilder::new()
        .layer(from_fn_with_state(registry.clone(), observe::observe))
        .layer(from_fn(put_into_words))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(registry, admit))
        .map_request(fold_name)
        .service(routes.layer(from_fn(observe::note_route)));
    Router::new().fallback_service(stack)
}

/// Every failure below gets its status and body here, by the surface it happened on. Docker's clients look for the header on `/v2/`.
async fn put_into_words(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = word(&path, next.run(request).await);
    if path.starts_with("/v2") {
        response
            .headers_mut()
            .insert("docker-distribution-api-version", HeaderValue::from_static("registry/2.0"));
    }
    response
}

/// Turns away what pages of other sites send, and guards the body of everything else.
async fn admit(State(registry): State<Registry>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match origin::check(&registry, &parts) {
        Ok(()) => body::guard(Request::from_parts(parts, body), next).await,
        Err(failure) => failure.into_response(),
    }
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Failure::Panic(text.unwrap_or("without a text").to_owned()).into_response()
}
