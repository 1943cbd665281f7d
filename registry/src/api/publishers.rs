//! `/lode/v1/publishers`: CI jobs that sign in as a robot.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::{NewPublisher, Publisher, PublisherKind};
use crate::auth::{Action, Caller};
use crate::http::{Failure, Json, JsonBody, Links, Path, Query, RequestBody, page};

const NO_PUBLIC_URL: &str = "no job can sign in until the operator sets `public_url` (--public-url): tokens of jobs have to name it as their audience";

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

#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedPublisher {
    #[serde(flatten)]
    publisher: Publisher,
    /// Why its jobs cannot sign in yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'static str>,
}

/// Oldest first.
pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let robot = query.get("robot");
    let found = registry.publisher_page(&caller, robot, query.id("last")?, n).await?;
    let last = found.items.last().filter(|_| found.more).map(|publisher| publisher.id.to_string());
    let next = last.map(|last| links.after("/lode/v1/publishers", n, &last, ("robot", robot)));
    Ok(page(Json(PublisherList { publishers: found.items }), next))
}

pub(crate) async fn create(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<PublisherRequest>,
) -> Result<(StatusCode, Json<CreatedPublisher>), Failure> {
    let (PublisherRequest { robot, kind, issuer, conditions }, _charge) = body.into_parts();
    let publisher =
        registry.publisher_create(&caller, NewPublisher { robot, kind, issuer, conditions }).await?;
    let warning = registry.config().public_url.is_none().then_some(NO_PUBLIC_URL);
    Ok((StatusCode::CREATED, Json(CreatedPublisher { publisher, warning })))
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
