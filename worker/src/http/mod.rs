//! The worker's own API, which only its registry's gateway calls: bodies and answers are the public API's.
//! Every route but `/healthz` wants the secret that the registration returned.

mod chat;
mod embed;
mod error;
mod generate;
mod options;
mod ps;
mod request;
mod score;
mod stream;
mod traced;

use std::sync::{Arc, RwLock};

use axum::Router;
use axum::routing::{get, post};
use lode_client::BodyBudget;

use crate::config::Config;
use crate::scheduler::Scheduler;

/// How much longer a request may be than its caller's, which the gateway may have translated.
const TRANSLATION_BYTES: usize = 64 << 10;

/// What the handlers share.
#[derive(Clone)]
pub struct Api {
    pub scheduler: Scheduler,
    /// What the gateway has to show; absent until this worker is registered.
    pub secret: Arc<RwLock<Option<String>>>,
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
        .route("/api/generate", post(generate::generate))
        .route("/api/chat", post(chat::chat))
        .route("/api/embed", post(embed::embed))
        .route("/api/ps", get(ps::ps))
        .route("/lode/v1/score", post(score::score))
        .fallback(error::not_served)
        .layer(axum::middleware::from_fn(error::name_model))
        .layer(axum::middleware::from_fn(traced::traced))
        .with_state(api)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;
