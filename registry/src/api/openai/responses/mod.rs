//! OpenAI's Responses API, implemented with `/api/chat`. Responses are not stored. Fields that have an effect in
//! OpenAI's API and cannot have it here are refused by name.

mod input;
mod object;
mod output;
mod request;
#[cfg(test)]
mod tests;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use self::output::Reply;
use self::request::{translate_count, translate_response};
use crate::api::inference::read_json;
use crate::api::worker_chat::request_worker;
use crate::auth::{Action, Caller, Target};
use crate::http::extract::InferenceBody;
use crate::http::forwarded::RequestOrigin;
use crate::http::state::ServerState;
use crate::http::{Failure, Json, Path};

pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    body: InferenceBody,
) -> Result<Response, Failure> {
    let (body, settings) = body.translate(translate_response).await?;
    // A response repeats some fields of its request.
    let mut charge = server.registry.body_budget().charge();
    charge.set(settings.repeated_bytes())?;
    let response = request_worker(&server, (&caller, client), &settings.model, "/api/chat", body).await?;
    let is_stream = settings.stream;
    let reply = Reply::new(settings, charge);
    if is_stream {
        return Ok(reply.into_events(response));
    }
    let record: Value = read_json(response).await?;
    Ok(Json(reply.into_object(record)?).into_response())
}

/// The number of tokens that a request's prompt has. The model is loaded, and does not run.
pub(crate) async fn count_tokens(
    State(server): State<ServerState>,
    caller: Caller,
    client: RequestOrigin,
    body: InferenceBody,
) -> Result<Json<Value>, Failure> {
    let (body, settings) = body.translate(translate_count).await?;
    let response = request_worker(&server, (&caller, client), &settings.model, "/api/chat", body).await?;
    let record: Value = read_json(response).await?;
    let count = &record["prompt_eval_count"];
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": count })))
}

/// The routes of stored responses, of which there are none.
pub(crate) async fn stored(
    State(server): State<ServerState>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    server.registry.authorize(&caller, Action::SignIn, Target::Server).await?;
    Err(Failure::ResponseNotStored { id })
}
