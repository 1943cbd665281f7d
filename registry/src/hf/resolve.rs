//! `/hf/{name}/resolve/{revision}/{*path}`: a file of a revision, whole or a range of it.

use std::ops::Range;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::entries::{lfs_oid, oid};
use super::error::REPO_COMMIT;
use crate::app::{FilesError, ManifestFile, Revision};
use crate::auth::Caller;
use crate::http::conditional::matches_tag;
use crate::http::file_sender::{FileBody, SendfileQueue};
use crate::http::links::header_value;
use crate::http::range::{RequestedRange, requested_range};
use crate::http::{Failure, HfName, Path};
use crate::{Error, Registry};

const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
/// The content of a revision that is a commit id never changes; that of a tag must be checked.
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("private, no-cache");

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    request: Parts,
    Path((HfName(repository), name, path)): Path<(HfName, String, String)>,
) -> Result<Response, Failure> {
    let revision = registry.revision(&caller, &repository, &name).await?;
    registry.audit_pull(&caller, &repository, &revision.digest);
    let response = file_response(&registry, &caller, &request, &revision, &path).await?;
    if response.status() != StatusCode::NOT_MODIFIED {
        registry.count_pull(&caller, &repository);
    }
    Ok(response)
}

async fn file_response(
    registry: &Registry,
    caller: &Caller,
    request: &Parts,
    revision: &Revision,
    path: &str,
) -> Result<Response, Failure> {
    let repository = &revision.repository;
    let file = find(revision, path)?;
    let (mut headers, etag) = headers_of(revision, path, file);
    if matches_tag(&request.headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let (status, range) = match requested_range(&request.headers, &etag, file.size) {
        RequestedRange::Part(range) => {
            let described = format!("bytes {}-{}/{}", range.start, range.end - 1, file.size);
            headers.insert(header::CONTENT_RANGE, header_value(&described));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        // No client of this API requests several ranges, and the whole is a valid response.
        RequestedRange::Whole | RequestedRange::Parts(_) => (StatusCode::OK, 0..file.size),
        RequestedRange::Unsatisfiable => {
            return Err(Error::RangeUnsatisfiable { size_bytes: file.size }.into());
        }
    };
    let blob = registry.file_blob(caller, repository, file).await.map_err(FilesError::from)?;
    if let Some(blob) = &blob {
        if let Some(address) = registry.blob_signed_url(blob).await? {
            headers.remove(header::CONTENT_RANGE);
            headers.insert(header::LOCATION, header_value(address.as_str()));
            return Ok((StatusCode::FOUND, headers).into_response());
        }
        if let Some(outlet) = SendfileQueue::of(request)
            && let Some(stored) = registry.blob_file(blob).await?
        {
            headers.insert(header::CONTENT_LENGTH, length(&range).into());
            return Ok((status, headers, Body::new(FileBody::new(outlet, stored, range))).into_response());
        }
    }
    headers.insert(header::CONTENT_LENGTH, length(&range).into());
    let body = registry.file_stream(caller, repository, file, range).await?;
    Ok((status, headers, Body::from_stream(body)).into_response())
}

/// The clients send it first. It never redirects, because they would not follow to another host.
pub(crate) async fn head(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HfName(repository), name, path)): Path<(HfName, String, String)>,
) -> Result<Response, Failure> {
    let revision = registry.revision(&caller, &repository, &name).await?;
    let file = find(&revision, &path)?;
    let (mut headers, _) = headers_of(&revision, &path, file);
    headers.insert(header::CONTENT_LENGTH, file.size.into());
    Ok((headers, Body::empty()).into_response())
}

fn find<'a>(revision: &'a Revision, path: &str) -> Result<&'a ManifestFile, FilesError> {
    revision.files.files.get(path).ok_or_else(|| revision.entry_unknown(path))
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

fn headers_of(revision: &Revision, path: &str, file: &ManifestFile) -> (HeaderMap, String) {
    let etag = match lfs_oid(file) {
        Some(sha256) => format!("\"{sha256}\""),
        None => format!("\"{}\"", oid(file)),
    };
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    let mut headers = HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_DISPOSITION, header_value(&format!("attachment; filename*=UTF-8''{name}"))),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (header::ETAG, header_value(&etag)),
        (header::CACHE_CONTROL, CACHE_CONTROL),
        (REPO_COMMIT, header_value(revision.commit())),
    ]);
    if lfs_oid(file).is_some() {
        headers.insert(LINKED_ETAG, header_value(&etag));
        headers.insert(LINKED_SIZE, file.size.into());
    }
    (headers, etag)
}
