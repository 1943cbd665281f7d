//! `/v2/{name}/blobs/{digest}`: get, head, delete. A response to ollama carries a signed link to this one
//! blob, because that client fetches the bytes without credentials.

use std::io;
use std::ops::Range;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt, TryStreamExt};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use url::Url;

use crate::app::{BlobInfo, BlobStream, Spellings, StoredBlob};
use crate::auth::Caller;
use crate::http::conditional::{DOCKER_CONTENT_DIGEST, IMMUTABLE, etag, not_modified};
use crate::http::file_sender::{FileBody, SendfileQueue};
use crate::http::links::header_value;
use crate::http::range::{MAX_RANGES, Multipart, RequestedRange, requested_range};
use crate::http::{Failure, Links, Path, Query, agent};
use crate::{Error, Registry};

const OCTET_STREAM: &str = "application/octet-stream";

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    request: Parts,
    Path((names, digest)): Path<(Spellings, Digest)>,
    query: Query,
) -> Result<Response, Failure> {
    let link = query.get("link");
    let (caller, repository) = match link {
        Some(link) => {
            let opened = registry.blob_link_open(link, &digest).await?;
            let (identity, repository) =
                opened.filter(|(_, own)| names.iter().any(|name| name == own)).ok_or(Failure::Link)?;
            (caller.with_identity(identity), repository)
        }
        None => {
            let repository = registry.spelling_of_blob(&caller, &names, &digest).await?;
            (caller, repository)
        }
    };
    let blob = registry.blob_visible(&caller, &repository, &digest).await?;
    if let Some(same) = not_modified(&request.headers, &digest) {
        return Ok(same);
    }
    let info = BlobInfo { digest: digest.clone(), size_bytes: blob.size_bytes };
    let etag = etag(&digest);
    let wanted = requested_range(&request.headers, &etag, info.size_bytes);
    if wanted == RequestedRange::Unsatisfiable {
        return Err(Error::RangeUnsatisfiable { size_bytes: info.size_bytes }.into());
    }
    if let Some(address) = registry.blob_signed_url(&blob).await?
        && can_follow_redirect(&request, &address)
    {
        let headers = [
            (header::LOCATION, header_value(address.as_str())),
            (DOCKER_CONTENT_DIGEST, header_value(digest.as_str())),
        ];
        return Ok((StatusCode::TEMPORARY_REDIRECT, headers).into_response());
    }
    let mut response = match wanted {
        RequestedRange::Parts(ranges) => {
            if ranges.len() > MAX_RANGES {
                let can_merge = agent::merges_ranges(&request.headers);
                return Err(Failure::TooManyRanges {
                    limit: MAX_RANGES,
                    size_bytes: info.size_bytes,
                    can_merge,
                });
            }
            multipart_response(&registry, &repository, &info, &blob, ranges).await?
        }
        RequestedRange::Part(range) => {
            let described = format!("bytes {}-{}/{}", range.start, range.end - 1, info.size_bytes);
            let length = range.end - range.start;
            let body = blob_body(&registry, &request, &repository, &info, &blob, Some(range)).await?;
            let mut response = (StatusCode::PARTIAL_CONTENT, headers_of(&info, &etag), body).into_response();
            response.headers_mut().insert(header::CONTENT_RANGE, header_value(&described));
            response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            response
        }
        RequestedRange::Whole | RequestedRange::Unsatisfiable => {
            let body = blob_body(&registry, &request, &repository, &info, &blob, None).await?;
            (headers_of(&info, &etag), body).into_response()
        }
    };
    // A link gives no other link: it would never end.
    if agent::is_ollama(&request.headers) && link.is_none() {
        let location = match registry.blob_link(&caller, &repository, &digest, info.size_bytes).await? {
            Some(token) => links.blob_with_token(&repository, &digest, &token),
            None => links.blob(&repository, &digest),
        };
        response.headers_mut().insert(header::LOCATION, header_value(&location));
    }
    Ok(response)
}

pub(crate) async fn head(
    State(registry): State<Registry>,
    caller: Caller,
    headers: HeaderMap,
    Path((names, digest)): Path<(Spellings, Digest)>,
) -> Result<Response, Failure> {
    let repository = registry.spelling_of_blob(&caller, &names, &digest).await?;
    let info = registry.blob_stat(&caller, &repository, &digest).await?;
    if let Some(same) = not_modified(&headers, &digest) {
        return Ok(same);
    }
    Ok((headers_of(&info, &etag(&digest)), Body::empty()).into_response())
}

pub(crate) async fn delete(
    State(registry): State<Registry>,
    caller: Caller,
    Path((names, digest)): Path<(Spellings, Digest)>,
) -> Result<StatusCode, Failure> {
    let repository = registry.spelling_of_blob(&caller, &names, &digest).await?;
    registry.blob_delete(&caller, &repository, &digest).await?;
    Ok(StatusCode::ACCEPTED)
}

/// The bytes of a blob, or of one range of it.
async fn blob_body(
    registry: &Registry,
    request: &Parts,
    repository: &Repository,
    info: &BlobInfo,
    blob: &StoredBlob,
    range: Option<Range<u64>>,
) -> Result<Body, Failure> {
    if let Some(outlet) = SendfileQueue::of(request)
        && let Some(file) = registry.blob_file(blob).await?
    {
        return Ok(Body::new(FileBody::new(outlet, file, range.unwrap_or(0..info.size_bytes))));
    }
    Ok(Body::from_stream(registry.blob_stream(repository, &info.digest, blob, range).await?))
}

/// Several ranges of a blob in one body. Each is opened when the previous one has been sent.
async fn multipart_response(
    registry: &Registry,
    repository: &Repository,
    info: &BlobInfo,
    blob: &StoredBlob,
    ranges: Vec<Range<u64>>,
) -> Result<Response, Failure> {
    let Multipart { content_type, content_length, parts, end } =
        Multipart::new(ranges, OCTET_STREAM, info.size_bytes);
    let mut headers = headers_of(info, &etag(&info.digest));
    headers.insert(header::CONTENT_TYPE, header_value(&content_type));
    headers.insert(header::CONTENT_LENGTH, content_length.into());

    // Open the first one before the response begins, so that missing bytes cause an error response.
    let mut parts = parts.into_iter();
    let mut body: BlobStream = stream::empty().boxed();
    if let Some((head, range)) = parts.next() {
        let bytes = registry.blob_stream(repository, &info.digest, blob, Some(range)).await?;
        body = stream::iter([Ok(head)]).chain(bytes).boxed();
    }
    let (registry, repository, digest, blob) =
        (registry.clone(), repository.clone(), info.digest.clone(), blob.clone());
    let rest = stream::iter(parts).then(move |(head, range)| {
        let (registry, repository, digest, blob) =
            (registry.clone(), repository.clone(), digest.clone(), blob.clone());
        async move {
            let bytes = registry.blob_stream(&repository, &digest, &blob, Some(range)).await;
            io::Result::Ok(stream::iter([Ok(head)]).chain(bytes.map_err(io::Error::other)?))
        }
    });
    let body = body.chain(rest.try_flatten()).chain(stream::iter([Ok(end)]));
    Ok((StatusCode::PARTIAL_CONTENT, headers, Body::from_stream(body)).into_response())
}

/// Ollama's clients send their credentials to another port of the same host too, and storage refuses such
/// requests.
fn can_follow_redirect(request: &Parts, address: &Url) -> bool {
    let Parts { headers, uri, .. } = request;
    if !agent::is_ollama(headers) {
        return true;
    }
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let authority = uri.authority().cloned().or(named);
    let (Some(authority), Some(storage)) = (authority, address.host_str()) else { return false };
    !storage.eq_ignore_ascii_case(authority.host())
}

fn headers_of(info: &BlobInfo, etag: &str) -> HeaderMap {
    HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static(OCTET_STREAM)),
        (header::CONTENT_LENGTH, info.size_bytes.into()),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (header::ETAG, header_value(etag)),
        (header::CACHE_CONTROL, IMMUTABLE),
        (DOCKER_CONTENT_DIGEST, header_value(info.digest.as_str())),
    ])
}
