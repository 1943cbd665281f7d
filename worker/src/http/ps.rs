//! `GET /api/ps`: the loaded models, as ollama lists them.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use lode_model::reference::Repository;
use serde_json::{Value, json};

use super::Api;
use super::request::Authorized;
use super::response::json_response;
use super::stream::timestamp;
use crate::scheduler::Snapshot;

pub(super) async fn ps(State(api): State<Api>, _: Authorized) -> Response {
    let models: Vec<Value> = api.scheduler.loaded().iter().map(model).collect();
    json_response(StatusCode::OK, &json!({ "models": models }))
}

/// The name as in lists of models, so that clients can compare the two. The request that loaded the model may
/// have left out the tag or written `library/`.
fn listed_name(repository: &Repository, requested: &str) -> String {
    if let Some((_, digest)) = requested.rsplit_once('@') {
        return format!("{repository}@{digest}");
    }
    let last = requested.rsplit('/').next().unwrap_or(requested);
    let tag = last.split_once(':').map_or("latest", |(_, tag)| tag);
    format!("{repository}:{tag}")
}

fn model(model: &Snapshot) -> Value {
    let name = listed_name(&model.repository, &model.name);
    json!({
        "name": name,
        "model": name,
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
        "size_vram": model.device_bytes,
        "device": model.device,
        "context_length": model.context_length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (repository, requested, expect) in [
            ("mini", "mini", "mini:latest"),
            ("mini", "registry.ollama.ai/library/Mini:8B", "mini:8B"),
            ("team/sub/mini", "team/sub/mini", "team/sub/mini:latest"),
            ("team/mini", "team/mini@sha256:00", "team/mini@sha256:00"),
        ] {
            assert_eq!(listed_name(&repository.parse().unwrap(), requested), expect);
        }
    }
}
