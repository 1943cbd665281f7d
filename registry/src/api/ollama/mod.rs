//! ollama's API for the registry itself: lists, details, copies, deletions.
//! Names follow `model_name`; formats and texts follow ollama.

pub(crate) mod blobs;
pub(crate) mod create;
pub(crate) mod pull;
pub(crate) mod push;
pub(super) mod records;
pub(crate) mod show;
pub(crate) mod tags;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use lode_model::config::{ModelConfig, format_parameter_count};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Registry;
use crate::app::ModelSummary;
use crate::auth::{Action, Caller, Target};
use crate::http::model_name::{self, ModelName};
use crate::http::{Failure, Json, JsonBody, OwnHosts, RequestBody};

/// The version of ollama that this API implements; its clients refuse servers that seem too old.
const API_VERSION: &str = "0.33.0";

/// A request that names a model, by either key.
#[derive(Deserialize, ToSchema)]
pub(crate) struct ModelRequest {
    /// Such as `team/mini:v1`.
    #[serde(default)]
    model: String,
    /// An older name of `model`.
    #[serde(default)]
    name: String,
}

impl RequestBody for ModelRequest {
    const ACTION: Action = Action::Delete;
}

impl ModelRequest {
    fn name(&self) -> &str {
        if self.model.is_empty() { &self.name } else { &self.model }
    }
}

/// The short description of a model in several responses.
#[derive(Serialize, ToSchema)]
#[schema(as = ShowDetails)]
pub(crate) struct Details {
    parent_model: String,
    format: String,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

impl Details {
    fn new(summary: &ModelSummary, config: Option<&ModelConfig>) -> Details {
        let family = summary.architecture.clone().unwrap_or_default();
        let families =
            config.map(|config| config.model_families.clone()).filter(|families| !families.is_empty());
        Details {
            parent_model: String::new(),
            format: summary.format.clone(),
            families: families.unwrap_or_else(|| summary.architecture.clone().into_iter().collect()),
            family,
            parameter_size: summary.parameters.map(format_parameter_count).unwrap_or_default(),
            quantization_level: summary.quantization.clone().unwrap_or_default(),
        }
    }
}

pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": API_VERSION, "lode": env!("CARGO_PKG_VERSION") }))
}

/// The signed-in user, which a server without accounts does not require. If this route failed, `ollama push
/// NAME` would end before it asks this server to push.
pub(crate) async fn me(State(registry): State<Registry>, caller: Caller) -> Result<Json<Value>, Failure> {
    registry.authorize(&caller, Action::SignIn, Target::Server).await?;
    let account = caller.account();
    let (id, name) = account.map_or((Uuid::nil(), "anonymous"), |account| (account.id, &account.name[..]));
    Ok(Json(json!({ "id": id, "email": "", "name": name })))
}

/// Adds to a 401 the page on which a person signs in, which ollama opens. ollama expects this text.
pub(crate) fn unauthorized(sign_in_url: &str, response: Response) -> Response {
    let body = json!({ "error": "unauthorized", "signin_url": sign_in_url });
    let mut worded = (StatusCode::UNAUTHORIZED, Json(body)).into_response();
    // Keep the extensions: the log needs the failure.
    *worded.extensions_mut() = response.into_parts().0.extensions;
    worded
}

/// `ollama signout`: removes the key that has signed the request.
pub(crate) async fn sign_out(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<StatusCode, Failure> {
    registry.authorize(&caller, Action::SignIn, Target::Server).await?;
    registry.key_forget(&caller).await?;
    Ok(StatusCode::OK)
}

pub(crate) async fn delete(
    State(registry): State<Registry>,
    caller: Caller,
    own: OwnHosts,
    named: JsonBody<ModelRequest>,
) -> Result<StatusCode, Failure> {
    let ModelName { repositories, reference } = model_name::parse(named.name(), &own)?;
    let repository = registry.spelling_of_manifest(&caller, &repositories, &reference).await?;
    let deleted = registry.model_delete(&caller, &repository, &reference).await?;
    if deleted { Ok(StatusCode::OK) } else { Err(Failure::ModelUnknown { name: named.name().to_owned() }) }
}
