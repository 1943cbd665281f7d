//! `GET /lode/v1/blobs?size=BYTES`: whether any blob has this size. If none does, a client's content of that
//! size cannot be here either, so the client can send it without hashing it first.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::Registry;
use crate::auth::Caller;
use crate::http::{Failure, Json, Query};

#[derive(Serialize, ToSchema)]
pub(crate) struct SizeKnown {
    known: bool,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    query: Query,
) -> Result<Json<SizeKnown>, Failure> {
    let size = query.number("size")?;
    let size = size.ok_or(Failure::QueryMissing { name: "size", expected: "a number of bytes" })?;
    Ok(Json(SizeKnown { known: registry.blob_size_known(&caller, size).await? }))
}
