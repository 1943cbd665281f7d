//! `/v2/{name}/blobs/uploads/`: create, announce, mount, send in one piece or in chunks, query, finish,
//! cancel. The URL of an upload identifies its state; each response repeats it.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use http::{HeaderMap, StatusCode, header};
use lode_model::digest::{Algorithm, Digest};
use lode_model::reference::Repository;
use uuid::Uuid;

use super::DOCKER_UPLOAD_UUID;
use crate::app::{self, ChunkRange, Spellings, UploadStatus};
use crate::auth::Caller;
use crate::http::conditional::DOCKER_CONTENT_DIGEST;
use crate::http::links::header_value;
use crate::http::range::{chunk, content_length};
use crate::http::{Failure, Links, Path, Query, agent};
use crate::{Error, Registry};

/// `POST`: its meaning depends on the query and on the client.
pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    headers: HeaderMap,
    Path(names): Path<Spellings>,
    query: Query,
    body: Body,
) -> Result<Response, Failure> {
    let repository = registry.spelling_to_write(&caller, &names).await?;
    let algorithm: Option<Algorithm> = query.get("digest-algorithm").map(str::parse).transpose()?;
    let held = match (query.digest("mount")?, query.digest("digest")?) {
        // A 201 to a mount makes that client skip a later upload to another repository.
        (Some(_), _) if agent::is_ollama(&headers) => None,
        (Some(digest), _) => {
            let from = query.get("from").map(str::parse);
            match from.transpose() {
                Ok(from) => registry.blob_mount(&caller, &repository, &digest, from.as_ref()).await?,
                // No repository can have such a name, so there is nothing to mount.
                Err(_) => None,
            }
        }
        (None, Some(digest)) if is_announcement(&headers, &digest) => {
            // Clients without these headers cannot skip the upload: they treat a 201 as an error.
            match has_redirect_headers(&headers) {
                true => registry.blob_mount(&caller, &repository, &digest, None).await?,
                false => None,
            }
        }
        (None, Some(digest)) => Some(
            registry.blob_put(&caller, &repository, &digest, declared_range(&headers)?, stream(body)).await?,
        ),
        (None, None) => None,
    };
    if let Some(blob) = held {
        return Ok(created_response(&links, &repository, &blob.digest));
    }
    let upload = registry.upload_create(&caller, &repository, algorithm).await?;
    Ok(status_response(StatusCode::ACCEPTED, &links, &repository, &upload))
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path((names, id)): Path<(Spellings, Uuid)>,
) -> Result<Response, Failure> {
    let repository = registry.spelling_of_upload(&names, id).await?;
    let upload = registry.upload_status(&caller, &repository, id).await?;
    Ok(status_response(StatusCode::NO_CONTENT, &links, &repository, &upload))
}

pub(crate) async fn patch(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    headers: HeaderMap,
    Path((names, id)): Path<(Spellings, Uuid)>,
    body: Body,
) -> Result<Response, Failure> {
    let repository = registry.spelling_of_upload(&names, id).await?;
    let upload = registry
        .upload_append(&caller, &repository, id, declared_range(&headers)?, stream(body))
        .await
        .map_err(|error| upload_failure(error, &links, &repository, id))?;
    Ok(status_response(StatusCode::ACCEPTED, &links, &repository, &upload))
}

pub(crate) async fn put(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    headers: HeaderMap,
    Path((names, id)): Path<(Spellings, Uuid)>,
    query: Query,
    body: Body,
) -> Result<Response, Failure> {
    let repository = registry.spelling_of_upload(&names, id).await?;
    let digest = query.digest("digest")?;
    let digest =
        digest.ok_or(Failure::QueryMissing { name: "digest", expected: "the digest of the whole blob" })?;
    let blob = registry
        .upload_finish(&caller, &repository, id, declared_range(&headers)?, stream(body), &digest)
        .await
        .map_err(|error| upload_failure(error, &links, &repository, id))?;
    Ok(created_response(&links, &repository, &blob.digest))
}

pub(crate) async fn delete(
    State(registry): State<Registry>,
    caller: Caller,
    Path((names, id)): Path<(Spellings, Uuid)>,
) -> Result<StatusCode, Failure> {
    let repository = registry.spelling_of_upload(&names, id).await?;
    registry.upload_cancel(&caller, &repository, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a request announces a digest without sending the bytes. Ollama's transfer client does so to ask
/// whether they are needed; other clients send the bytes with the digest. Older versions have no header for
/// this, and are recognised by an empty body that does not match the digest.
fn is_announcement(headers: &HeaderMap, digest: &Digest) -> bool {
    let is_empty = content_length(headers) == Some(0);
    has_redirect_headers(headers) || (is_empty && *digest != Digest::of(digest.algorithm(), b""))
}

fn has_redirect_headers(headers: &HeaderMap) -> bool {
    headers.contains_key("x-redirect-uploads") || headers.contains_key("x-content-length")
}

fn declared_range(headers: &HeaderMap) -> Result<ChunkRange, Failure> {
    Ok(ChunkRange { range: chunk(headers)?, length: content_length(headers) })
}

fn stream(body: Body) -> app::Body {
    Box::pin(body.into_data_stream().map_err(Into::into))
}

fn upload_failure(error: Error, links: &Links, repository: &Repository, id: Uuid) -> Failure {
    Failure::Upload { source: error, location: links.upload(repository, id), id }
}

fn created_response(links: &Links, repository: &Repository, digest: &Digest) -> Response {
    let headers = [
        (header::LOCATION, header_value(&links.blob(repository, digest))),
        (DOCKER_CONTENT_DIGEST, header_value(digest.as_str())),
    ];
    (StatusCode::CREATED, headers).into_response()
}

fn status_response(
    status: StatusCode,
    links: &Links,
    repository: &Repository,
    upload: &UploadStatus,
) -> Response {
    let mut response = status.into_response();
    let location = links.upload(repository, upload.id);
    resume_headers(response.headers_mut(), &location, upload.id, Some(upload.offset));
    response
}

/// The headers that tell a client where to resume an upload. An empty upload has the range `0-0`, because the
/// syntax has no empty range.
pub(crate) fn resume_headers(headers: &mut HeaderMap, location: &str, id: Uuid, offset: Option<u64>) {
    headers.insert(header::LOCATION, header_value(location));
    headers.insert(DOCKER_UPLOAD_UUID, header_value(&id.to_string()));
    if let Some(offset) = offset {
        headers.insert(header::RANGE, header_value(&format!("0-{}", offset.saturating_sub(1))));
    }
}
