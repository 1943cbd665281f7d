//! The routes whose bodies are passed to a worker unchanged, and the older `/api/embeddings`, which is
//! translated. Names are resolved here, so that a worker only receives a repository and a digest.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use futures::TryStreamExt;
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{GatewayError, InferenceRequest, WorkerResponse, forward};
use crate::Registry;
use crate::api::model_name::{self, ModelName, ReadName};
use crate::auth::Caller;
use crate::http::extract::{InferenceBody, Members, parse};
use crate::http::forwarded::ClientAddress;
use crate::http::{Failure, Json, OwnHosts};

/// The largest response that is read completely before it is passed on.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// A route that passes its body to `path` on a worker.
pub(crate) fn passthrough_route(path: &'static str, read_name: ReadName) -> MethodRouter<Registry> {
    post(
        move |State(registry): State<Registry>,
              caller: Caller,
              client: ClientAddress,
              own: OwnHosts,
              mut body: InferenceBody| async move {
            let name = body.outline.model.take().unwrap_or_default();
            let (repository, digest) = resolve(&registry, &caller, &name, read_name(&name, &own)?).await?;
            forward(&registry, InferenceRequest { repository, digest, name, client, path, body }).await
        },
    )
}

/// Resolves a model name for this caller; `asked` is the name as in the request.
pub(crate) async fn resolve(
    registry: &Registry,
    caller: &Caller,
    asked: &str,
    name: ModelName,
) -> Result<(Repository, Digest), Failure> {
    for repository in name.repositories.iter() {
        if let Some(digest) = registry.model_resolve(caller, repository, &name.reference).await? {
            return Ok((repository.clone(), digest));
        }
    }
    Err(Failure::ModelUnknown { name: asked.to_owned() })
}

/// `POST /api/embeddings`, the older form of `/api/embed`: one prompt, one embedding.
pub(crate) async fn embeddings(
    State(registry): State<Registry>,
    caller: Caller,
    client: ClientAddress,
    own: OwnHosts,
    mut body: InferenceBody,
) -> Result<Response, Failure> {
    let name = body.outline.model.take().unwrap_or_default();
    let (repository, digest) = resolve(&registry, &caller, &name, model_name::parse(&name, &own)?).await?;
    // Without a prompt there is no embedding, but the model is loaded.
    let (body, is_empty) = body.translate(translate_embed_request).await?;
    let ask = InferenceRequest { repository, digest, name, client, path: "/api/embed", body };
    let answer = forward(&registry, ask).await?;
    if !answer.status.is_success() {
        return Ok(answer.into_response());
    }
    let answer: Value = read_json(answer).await?;
    let vector = if is_empty { json!([]) } else { answer["embeddings"][0].clone() };
    Ok(Json(json!({ "embedding": vector })).into_response())
}

/// Translates a request to `/api/embeddings` to one to `/api/embed`. Also returns whether its prompt is
/// empty.
fn translate_embed_request(body: &[u8]) -> Result<(Vec<u8>, bool), Failure> {
    let Members(mut members) = parse(body)?;
    let empty = RawValue::from_string("\"\"".to_owned()).expect("an empty string is JSON");
    let mut prompt: &RawValue = &empty;
    members.retain(|(key, value)| {
        if key == "prompt" && value.get() != "null" {
            prompt = value;
        }
        key != "prompt" && key != "input"
    });
    if !prompt.get().starts_with('"') {
        return Err(Failure::Unsupported("prompt must be a string"));
    }
    let is_empty = prompt.get() == "\"\"";
    members.push(("input".into(), prompt));
    let mut request = Vec::with_capacity(body.len());
    serde_json::to_writer(&mut request, &Members(members)).expect("strings and JSON are JSON");
    Ok((request, is_empty))
}

/// Reads a response that is one JSON value.
pub(crate) async fn read_json<T: serde::de::DeserializeOwned>(
    mut answer: WorkerResponse,
) -> Result<T, Failure> {
    let mut all = Vec::new();
    while let Some(bytes) = answer.bytes.try_next().await? {
        if all.len() + bytes.len() > MAX_ANSWER_BYTES {
            return Err(GatewayError::LineTooLong { limit_bytes: MAX_ANSWER_BYTES }.into());
        }
        all.extend_from_slice(&bytes);
    }
    Ok(serde_json::from_slice(&all).map_err(GatewayError::InvalidResponse)?)
}
