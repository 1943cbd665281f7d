//! `/lode/v1/webhooks`: the events that have not been delivered, and another attempt at one.

use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use uuid::Uuid;

use crate::Registry;
use crate::app::WebhookDelivery;
use crate::auth::Caller;
use crate::http::{Failure, Json, Path};

#[derive(Serialize)]
pub(crate) struct Deliveries {
    deliveries: Vec<WebhookDelivery>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<Json<Deliveries>, Failure> {
    Ok(Json(Deliveries { deliveries: registry.webhook_list(&caller).await? }))
}

pub(crate) async fn retry(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Failure> {
    let known = registry.webhook_retry(&caller, id).await?;
    if known { Ok(StatusCode::ACCEPTED) } else { Err(Failure::Id { id: id.to_string() }) }
}
