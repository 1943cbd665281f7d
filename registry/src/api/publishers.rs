//! `/lode/v1/publishers`: CI jobs that sign in as a robot.

use std::collections::BTreeMap;

use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::Registry;
use crate::app::{NewPublisher, Publisher, PublisherKind};
use crate::auth::{Action, Caller};
use crate::http::{Failure, Json, JsonBody, Path, Query, RequestBody};

/// A request to register a publisher.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublisherRequest {
    robot: String,
    kind: PublisherKind,
    /// The issuer of the tokens; by default the service's public one.
    issuer: Option<String>,
    /// Claims and their values.
    #[serde(default)]
    conditions: BTreeMap<String, String>,
}

impl RequestBody for PublisherRequest {
    const ACTION: Action = Action::Own;
}

#[derive(Serialize, ToSchema)]
pub(crate) struct PublisherList {
    publishers: Vec<Publisher>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    query: Query,
) -> Result<Json<PublisherList>, Failure> {
    Ok(Json(PublisherList { publishers: registry.publisher_list(&caller, query.get("robot")).await? }))
}

pub(crate) async fn create(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<PublisherRequest>,
) -> Result<(StatusCode, Json<Publisher>), Failure> {
    let (PublisherRequest { robot, kind, issuer, conditions }, _charge) = body.into_parts();
    let created =
        registry.publisher_create(&caller, NewPublisher { robot, kind, issuer, conditions }).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

pub(crate) async fn remove(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
    query: Query,
) -> Result<StatusCode, Failure> {
    registry.publisher_delete(&caller, query.get("robot"), id).await?;
    Ok(StatusCode::NO_CONTENT)
}
