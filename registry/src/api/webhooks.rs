//! `/lode/v1/webhooks`: lists undelivered events, and retries one.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::WebhookDelivery;
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Path, Query, page};

#[derive(Serialize, ToSchema)]
#[schema(as = DeliveryList)]
pub(crate) struct Deliveries {
    deliveries: Vec<WebhookDelivery>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let found = registry.webhook_list(&caller, query.get("last"), n).await?;
    let last = found.items.last().filter(|_| found.more).map(|delivery| delivery.id.clone());
    let next = last.map(|last| links.next("/lode/v1/webhooks", &[("n", &n.to_string()), ("last", &last)]));
    Ok(page(Json(Deliveries { deliveries: found.items }), next))
}

pub(crate) async fn retry(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Failure> {
    let known = registry.webhook_retry(&caller, id).await?;
    if known { Ok(StatusCode::ACCEPTED) } else { Err(Failure::Id { id: id.to_string() }) }
}
