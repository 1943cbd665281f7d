//! Copies: a second name for a manifest, and in another repository for all that it names. No bytes move.

use axum::extract::State;
use axum::routing::{MethodRouter, post};
use http::StatusCode;
use serde::Deserialize;

use super::model_name::ReadName;
use crate::Registry;
use crate::auth::Caller;
use crate::http::{Failure, Json};

#[derive(Default, Deserialize)]
#[serde(default)]
struct Copy {
    source: String,
    destination: String,
}

/// The route of a surface that reads names its own way.
pub(crate) fn copy(read_name: ReadName) -> MethodRouter<Registry> {
    post(move |State(registry): State<Registry>, caller: Caller, Json(copy): Json<Copy>| async move {
        let (source, destination) = (read_name(&copy.source)?, read_name(&copy.destination)?);
        let (source, destination) = ((&source.0, &source.1), (&destination.0, &destination.1));
        let found = registry.model_copy(&caller, source, destination).await?;
        if found { Ok(StatusCode::OK) } else { Err(Failure::ModelUnknown { name: copy.source }) }
    })
}
