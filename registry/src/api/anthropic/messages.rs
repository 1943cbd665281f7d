//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::reply::MessageReply;
use super::request::{translate_count, translate_message};
use crate::api::inference::read_json;
use crate::api::worker_chat::request_worker;
use crate::auth::Caller;
use crate::http::extract::InferenceBody;
use crate::http::forwarded::RequestOrigin;
use crate::http::state::ServerState;
use crate::http::{Failure, Json};

pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    body: InferenceBody,
) -> Result<Response, Failure> {
    let (body, options) = body.translate(translate_message).await?;
    let response = request_worker(&server, (&caller, client), &options.model, "/api/chat", body).await?;
    let is_stream = options.stream;
    let reply = MessageReply::new(options);
    if is_stream {
        return Ok(reply.into_events(response));
    }
    let record: Value = read_json(response).await?;
    Ok(Json(reply.into_message(record)?).into_response())
}

/// The number of tokens that a request's prompt has. The model is loaded, and does not run.
pub(crate) async fn count_tokens(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    body: InferenceBody,
) -> Result<Json<Value>, Failure> {
    let (body, options) = body.translate(translate_count).await?;
    let response = request_worker(&server, (&caller, client), &options.model, "/api/chat", body).await?;
    let record: Value = read_json(response).await?;
    Ok(Json(json!({ "input_tokens": record["prompt_eval_count"] })))
}
