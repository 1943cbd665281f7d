//! The worker's own API, which only its registry's gateway calls. Request and response bodies are those of
//! the public API. Every route except `/healthz` and `/metrics` requires the secret that the registration returned.

mod chat;
mod embed;
mod error;
mod generate;
mod options;
mod ps;
mod request;
mod rerank;
mod response;
mod score;
pub(crate) mod serve;
mod stream;
mod traced;

use std::sync::{Arc, RwLock};

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{StatusCode, header};
use lode_client::{BodyBudget, Secret};

use crate::config::Config;
use crate::scheduler::Scheduler;

/// Extra body size allowed here: the gateway may have translated the caller's request into a longer one.
const TRANSLATION_BYTES: usize = 64 << 10;

/// State shared by the handlers.
#[derive(Clone)]
pub struct Api {
    pub scheduler: Scheduler,
    /// The secret that the gateway has to send; absent until this worker is registered.
    pub secret: Arc<RwLock<Option<Secret>>>,
    pub bodies: Bodies,
}

/// Limits on request bodies.
#[derive(Clone)]
pub struct Bodies {
    limit_bytes: usize,
    budget: BodyBudget,
}

impl Bodies {
    pub fn new(config: &Config) -> Bodies {
        Bodies {
            limit_bytes: config.max_body.as_usize().saturating_add(TRANSLATION_BYTES),
            budget: BodyBudget::new(config.body_budget.0),
        }
    }
}

/// The worker's routes.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/metrics", get(metrics))
        .route("/api/generate", post(generate::generate))
        .route("/api/chat", post(chat::chat))
        .route("/api/embed", post(embed::embed))
        .route("/api/rerank", post(rerank::rerank))
        .route("/api/ps", get(ps::ps))
        .route("/lode/v1/score", post(score::score))
        .fallback(error::unknown_route)
        .layer(axum::middleware::from_fn(error::replace_digest_with_name))
        .layer(axum::middleware::from_fn(traced::trace_request))
        .with_state(api)
}

/// Metrics in Prometheus' text format. A worker within `lode serve` has none of its own.
async fn metrics() -> Response {
    match crate::metrics::render() {
        Some(page) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;
