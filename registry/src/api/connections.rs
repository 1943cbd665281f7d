//! `GET /lode/v1/connections`: the mirrors and webhooks of the settings.

use axum::extract::State;

use crate::Registry;
use crate::app::Connections;
use crate::auth::Caller;
use crate::http::{Failure, Json};

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<Json<Connections>, Failure> {
    Ok(Json(registry.connections(&caller).await?))
}
