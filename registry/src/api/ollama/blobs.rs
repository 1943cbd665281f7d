//! `/api/blobs/{digest}`: files for a model, uploaded before it is created.

use axum::body::Body;
use axum::extract::State;
use futures::TryStreamExt;
use http::{HeaderMap, StatusCode};
use lode_model::digest::Digest;

use crate::app;
use crate::auth::Caller;
use crate::http::range::content_length;
use crate::http::{Failure, Path};
use crate::{Error, Registry};

pub(crate) async fn head(
    State(registry): State<Registry>,
    caller: Caller,
    Path(digest): Path<String>,
) -> Result<StatusCode, Failure> {
    match registry.staged_stat(&caller, &parse(&digest)?).await? {
        true => Ok(StatusCode::OK),
        false => Ok(StatusCode::NOT_FOUND),
    }
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Path(digest): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    let digest = parse(&digest)?;
    let bytes: app::Body = Box::pin(body.into_data_stream().map_err(Into::into));
    match registry.staged_put(&caller, &digest, content_length(&headers), bytes).await {
        Ok(true) => Ok(StatusCode::CREATED),
        Ok(false) => Ok(StatusCode::OK),
        Err(Error::DigestMismatch { expected, got }) => Err(Failure::StagedDigestMismatch { expected, got }),
        Err(error) => Err(error.into()),
    }
}

/// A digest as ollama's clients write it; `sha256-` comes from file names.
pub(super) fn parse(text: &str) -> Result<Digest, Failure> {
    let usual = text.replacen("sha256-", "sha256:", 1);
    let digest: Option<Digest> = usual.to_ascii_lowercase().parse().ok();
    digest.ok_or_else(|| Failure::StagedDigest { digest: text.chars().take(100).collect() })
}
