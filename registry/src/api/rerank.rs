//! `POST /v1/rerank` and `/v2/rerank`, which clients of Jina's and Cohere's APIs call. The body is that of
//! `/api/rerank`; only names and errors have the format of `/v1`.

use axum::extract::State;

use crate::api::worker_chat::request_worker;
use crate::auth::Caller;
use crate::gateway::WorkerResponse;
use crate::http::Failure;
use crate::http::extract::InferenceBody;
use crate::http::forwarded::RequestOrigin;
use crate::http::state::ServerState;

pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    mut body: InferenceBody,
) -> Result<WorkerResponse, Failure> {
    let model = body.outline.model.take().unwrap_or_default();
    request_worker(&server, (&caller, client), &model, "/api/rerank", body).await
}
