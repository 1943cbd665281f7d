//! The routes whose bodies are passed to a worker unchanged, and the older `/api/embeddings`, which is
//! translated. Names are resolved here, so that a worker only receives a repository and a digest.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use futures::TryStreamExt;
use http::header;
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Error;
use crate::Registry;
use crate::auth::Caller;
use crate::error::chain;
use crate::gateway::{GatewayError, InferenceRequest, RequestClient, WorkerResponse, is_unload};
use crate::http::extract::{InferenceBody, Members, parse};
use crate::http::forwarded::RequestOrigin;
use crate::http::methods::post;
use crate::http::model_name::{self, ModelName, ReadName};
use crate::http::state::ServerState;
use crate::http::{Failure, Json, OwnHosts};

const NDJSON: &str = "application/x-ndjson";

/// The largest response that is read completely before it is passed on.
const MAX_RESPONSE_BYTES: usize = 256 * 1024 * 1024;
/// Responses above this size are parsed off the async threads.
const LARGE_BYTES: usize = 256 * 1024;

/// A route that passes its body to `path` on a worker.
pub(crate) fn passthrough_route(path: &'static str, read_name: ReadName) -> MethodRouter<ServerState> {
    post(
        move |State(server): State<ServerState>,
              caller: Caller,
              client: RequestOrigin,
              own: OwnHosts,
              mut body: InferenceBody| async move {
            let name = body.outline.model.take().unwrap_or_default();
            let model = resolve(&server.registry, &caller, &name, read_name(&name, &own)?).await?;
            let client = RequestClient::of(&caller, client.address, client.urgency);
            forward(&server, model, ForwardedBody { name, client, path, body }).await
        },
    )
}

/// A body to forward: the model's name as the caller wrote it, the client, and the worker's path.
pub(super) struct ForwardedBody {
    pub(super) name: String,
    pub(super) client: Option<RequestClient>,
    pub(super) path: &'static str,
    pub(super) body: InferenceBody,
}

/// Sends a request for a model, a repository and a digest, to one of the attached workers.
pub(super) async fn forward(
    server: &ServerState,
    (repository, digest): (Repository, Digest),
    request: ForwardedBody,
) -> Result<WorkerResponse, Failure> {
    let ForwardedBody { name, client, path, body } = request;
    let table = server.registry.workers_attached().await?;
    let InferenceBody { bytes, charge, .. } = body;
    let is_unload = is_unload(path, &bytes);
    let inference = InferenceRequest { repository, digest, name, client, path, body: bytes, _charge: charge };
    if is_unload {
        // Boxed: otherwise each request's future would have room for it.
        Box::pin(server.gateway.send_to_loaded(&table, &inference)).await;
    }
    Ok(server.gateway.forward(&table, inference).await?)
}

/// Resolves a model name for this caller; `requested_name` is the name as in the request.
pub(crate) async fn resolve(
    registry: &Registry,
    caller: &Caller,
    requested_name: &str,
    name: ModelName,
) -> Result<(Repository, Digest), Failure> {
    let mut refusal = None;
    for repository in name.repositories.iter() {
        match registry.model_resolve(caller, repository, &name.reference).await {
            Ok(Some(digest)) => return Ok((repository.clone(), digest)),
            Ok(None) => {}
            // The caller may run the other spelling.
            Err(error) if error.is_refusal() => refusal = refusal.or(Some(error)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(refusal.map_or_else(|| Failure::ModelUnknown { name: requested_name.to_owned() }, Failure::from))
}

/// `POST /api/embeddings`, the older form of `/api/embed`: one prompt, one embedding.
pub(crate) async fn embeddings(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    own: OwnHosts,
    mut body: InferenceBody,
) -> Result<Response, Failure> {
    let name = body.outline.model.take().unwrap_or_default();
    let model = resolve(&server.registry, &caller, &name, model_name::parse(&name, &own)?).await?;
    // Without a prompt there is no embedding, but the model is loaded.
    let (body, is_empty) = body.translate(translate_embed_request).await?;
    let client = RequestClient::of(&caller, client.address, client.urgency);
    let response = forward(&server, model, ForwardedBody { name, client, path: "/api/embed", body }).await?;
    if !response.status.is_success() {
        return Ok(response.into_response());
    }
    let response: Value = read_json(response).await?;
    let vector = if is_empty { json!([]) } else { response["embeddings"][0].clone() };
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

impl IntoResponse for WorkerResponse {
    /// Passes the response through. If a stream of records ends early, its last record reports the error.
    fn into_response(self) -> Response {
        let is_stream = self.content_type.as_bytes().starts_with(NDJSON.as_bytes());
        let bytes = self.bytes.or_else(move |error| async move {
            tracing::warn!(error = chain(&error), "response ended early");
            let record = Bytes::from(format!("{}\n", json!({ "error": error.to_string() })));
            if is_stream { Ok(record) } else { Err(error) }
        });
        (self.status, [(header::CONTENT_TYPE, self.content_type)], Body::from_stream(bytes)).into_response()
    }
}

/// Reads a response that is one JSON value.
pub(crate) async fn read_json<T: serde::de::DeserializeOwned + Send + 'static>(
    mut response: WorkerResponse,
) -> Result<T, Failure> {
    let mut all = Vec::new();
    while let Some(bytes) = response.bytes.try_next().await? {
        if all.len() + bytes.len() > MAX_RESPONSE_BYTES {
            return Err(GatewayError::LineTooLong { limit_bytes: MAX_RESPONSE_BYTES }.into());
        }
        all.extend_from_slice(&bytes);
    }
    let is_large = all.len() > LARGE_BYTES;
    let parse = move || serde_json::from_slice(&all).map_err(GatewayError::InvalidResponse);
    Ok(match is_large {
        true => tokio::task::spawn_blocking(parse).await.map_err(|_| Error::Interrupted)??,
        false => parse()?,
    })
}
