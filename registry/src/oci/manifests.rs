//! `/v2/{name}/manifests/{reference}`: stores and returns the exact bytes.
//! Which content a manifest may reference is decided in `app`.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, header};
use lode_client::read_body;
use lode_model::manifest::MAX_MANIFEST_BYTES;
use lode_model::reference::{Reference, Tag};

use super::{OCI_SUBJECT, OCI_TAG};
use crate::app::{Spellings, StoredManifest};
use crate::auth::{Action, Caller, Target};
use crate::http::conditional::{DOCKER_CONTENT_DIGEST, IMMUTABLE, etag, not_modified};
use crate::http::links::header_value;
use crate::http::{Failure, Links, Path, Query};
use crate::{Error, Registry};

/// How many `?tag=` parameters one push may have; the specification requires at least ten.
const MAX_TAGS: usize = 100;

/// Memory of a parsed manifest, as a multiple of its text's length.
const PARSED_FACTOR: usize = 4;

/// Also for HEAD; the middleware drops the body of its response.
pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    method: Method,
    headers: HeaderMap,
    Path((names, reference)): Path<(Spellings, Reference)>,
) -> Result<Response, Failure> {
    let repository = registry.spelling_of_manifest(&caller, &names, &reference).await?;
    let manifest = registry.manifest_get(&caller, &repository, &reference).await?;
    if method == Method::GET {
        registry.audit_pull(&caller, &repository, &manifest.digest);
    }
    if let Some(same) = not_modified(&headers, &manifest.digest) {
        return Ok(same);
    }
    if method == Method::GET {
        registry.count_pull(&caller, &repository);
    }
    let mut response_headers = headers_of(&manifest);
    if let Reference::Digest(_) = reference {
        response_headers.insert(header::CACHE_CONTROL, IMMUTABLE);
    }
    Ok((response_headers, manifest.bytes).into_response())
}

pub(crate) async fn put(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    headers: HeaderMap,
    Path((names, reference)): Path<(Spellings, Reference)>,
    query: Query,
    body: Body,
) -> Result<Response, Failure> {
    let tags = tags_of(&query, &reference)?;
    let repository = registry.spelling_to_write(&caller, &names).await?;
    registry.authorize(&caller, Action::Push, Target::Repository(&repository)).await?;
    let mut charge = registry.body_budget().charge();
    let bytes = read_body(body, MAX_MANIFEST_BYTES, &mut charge).await?;
    charge.set(bytes.len() * PARSED_FACTOR)?;
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let store = async || {
        registry.manifest_put(&caller, &repository, &reference, content_type, bytes.clone(), &tags).await
    };
    let put = match store().await {
        Err(Error::ManifestBlobsUnknown(missing))
            if registry.link_from_other_spelling(&caller, &names, &repository, &missing).await? =>
        {
            store().await?
        }
        put => put?,
    };

    let location = links.manifest(&repository, &Reference::Digest(put.digest.clone()));
    let mut response_headers = HeaderMap::from_iter([
        (header::LOCATION, header_value(&location)),
        (DOCKER_CONTENT_DIGEST, header_value(put.digest.as_str())),
    ]);
    if let Some(subject) = put.subject {
        response_headers.insert(OCI_SUBJECT, header_value(subject.as_str()));
    }
    for tag in tags {
        response_headers.append(OCI_TAG, header_value(tag.as_str()));
    }
    Ok((StatusCode::CREATED, response_headers).into_response())
}

pub(crate) async fn delete(
    State(registry): State<Registry>,
    caller: Caller,
    Path((names, reference)): Path<(Spellings, Reference)>,
) -> Result<StatusCode, Failure> {
    let repository = registry.spelling_of_manifest(&caller, &names, &reference).await?;
    registry.manifest_delete(&caller, &repository, &reference).await?;
    Ok(StatusCode::ACCEPTED)
}

/// The tags of a push by digest.
fn tags_of(query: &Query, reference: &Reference) -> Result<Vec<Tag>, Failure> {
    let mut tags: Vec<Tag> = Vec::new();
    for text in query.all("tag") {
        if let Reference::Tag(_) = reference {
            return Err(Failure::Query { name: "tag", value: text.to_owned(), expected: "a push by digest" });
        }
        if tags.len() == MAX_TAGS {
            return Err(Failure::TooManyTags { limit: MAX_TAGS });
        }
        tags.push(text.parse()?);
    }
    Ok(tags)
}

fn headers_of(manifest: &StoredManifest) -> HeaderMap {
    // Capacity for these and for the middleware's headers.
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, header_value(&manifest.media_type));
    headers.insert(header::CONTENT_LENGTH, manifest.bytes.len().into());
    headers.insert(header::ETAG, header_value(&etag(&manifest.digest)));
    headers.insert(DOCKER_CONTENT_DIGEST, header_value(manifest.digest.as_str()));
    headers
}
