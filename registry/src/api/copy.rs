//! `POST /lode/v1/copy`: a second name for a manifest, and in another repository for all that it names. No bytes move.

use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;

use super::model_name;
use crate::Registry;
use crate::auth::Caller;
use crate::http::{Failure, Json};

#[derive(Deserialize)]
pub(crate) struct Copy {
    #[serde(default)]
    pub(crate) source: String,
    #[serde(default)]
    pub(crate) destination: String,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Json(copy): Json<Copy>,
) -> Result<StatusCode, Failure> {
    let source = model_name::parse_any(&copy.source)?;
    let destination = model_name::parse_any(&copy.destination)?;
    let found =
        registry.model_copy(&caller, (&source.0, &source.1), (&destination.0, &destination.1)).await?;
    if found { Ok(StatusCode::OK) } else { Err(Failure::ModelUnknown { name: copy.source }) }
}
