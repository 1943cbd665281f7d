//! `GET /api/ps`: what is loaded, as ollama lists it.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::Api;
use super::request::Authorized;
use super::stream::{self, timestamp};
use crate::scheduler::Snapshot;

pub(super) async fn ps(State(api): State<Api>, _: Authorized) -> Response {
    let models: Vec<Value> = api.scheduler.loaded().iter().map(model).collect();
    stream::json(StatusCode::OK, &json!({ "models": models }))
}

fn model(model: &Snapshot) -> Value {
    json!({
        "name": model.name,
        "model": model.name,
        "size": model.size_bytes,
        "digest": model.digest.hex(),
        "details": {
            "parent_model": "",
            "format": model.format,
            "family": model.family,
            "families": [model.family],
            "parameter_size": model.parameter_size,
            "quantization_level": model.quantization,
        },
        "expires_at": timestamp(model.expires_at),
        "size_vram": 0,
        "context_length": model.context_length,
    })
}
