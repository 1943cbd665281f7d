//! `GET /lode/v1/status`: the state of the server on one page.

use axum::extract::State;

use crate::Registry;
use crate::app::Status;
use crate::auth::Caller;
use crate::http::{Failure, Json};

pub(crate) async fn get(State(registry): State<Registry>, caller: Caller) -> Result<Json<Status>, Failure> {
    Ok(Json(registry.status(&caller).await?))
}
