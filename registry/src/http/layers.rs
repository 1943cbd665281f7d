//! The middleware of the whole server, in one function, outermost first.
//! `router` wraps every route in it.

use std::any::Any;

use axum::Router;
use axum::extract::Request;
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
        .layer(from_fn(name_the_protocol))
        .layer(from_fn(put_into_words))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(registry, origin::check))
        .layer(from_fn(body::guard))
        .map_request(fold_name)
        .service(routes.layer(from_fn(observe::note_route)));
    Router::new().fallback_service(stack)
}

/// Every failure below gets its status and body here, by the surface it happened on.
async fn put_into_words(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    word(&path, next.run(request).await)
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    Failure::Panic(text.unwrap_or("without a text").to_owned()).into_response()
}

/// Docker's clients look for this header on `/v2/`.
async fn name_the_protocol(request: Request, next: Next) -> Response {
    let is_v2 = request.uri().path().starts_with("/v2");
    let mut response = next.run(request).await;
    if is_v2 {
        response
            .headers_mut()
            .insert("docker-distribution-api-version", HeaderValue::from_static("registry/2.0"));
    }
    response
}
