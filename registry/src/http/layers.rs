//! The middleware of the whole server, in one function, outermost first.
//! `router` wraps every route in it.

use std::any::Any;
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;
use uuid::Uuid;

use super::error::{Failed, word};
use super::fold_name::fold_name;
use super::links::header_value;
use super::{Failure, body, origin};
use crate::Registry;
use crate::error::chain;

const REQUEST_ID: &str = "x-request-id";

pub(crate) fn wrap(registry: Registry, routes: Router) -> Router {
    let stack = ServiceBuilder::new()
        .layer(from_fn(log))
        .layer(from_fn(name_the_protocol))
        .layer(from_fn(put_into_words))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(registry, origin::check))
        .layer(from_fn(body::guard))
        .map_request(fold_name)
        .service(routes);
    Router::new().fallback_service(stack)
}

/// Gives the request an id, and writes one line about its answer.
async fn log(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = Uuid::now_v7();
    let span = tracing::info_span!("request", %id, method = %request.method(), path = request.uri().path());
    let mut response = next.run(request).instrument(span.clone()).await;
    let _entered = span.entered();
    let status = response.status().as_u16();
    let duration_ms = started.elapsed().as_millis() as u64;
    match response.extensions().get::<Failed>() {
        Some(failed) if status >= 500 => {
            tracing::error!(status, duration_ms, error = chain(&*failed.0), "failed")
        }
        Some(failed) => tracing::debug!(status, duration_ms, reason = chain(&*failed.0), "refused"),
        None => tracing::debug!(status, duration_ms, "answered"),
    }
    response.headers_mut().insert(REQUEST_ID, header_value(&id.to_string()));
    response
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
