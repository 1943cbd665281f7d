//! `GET /v2/{name}/referrers/{digest}`: the manifests of a repository whose subject is that digest, as an
//! image index. Without referrers the index is empty; it is never a 404.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use lode_model::digest::Digest;
use lode_model::media_type::OCI_INDEX;
use serde::Serialize;

use super::OCI_FILTERS_APPLIED;
use crate::Registry;
use crate::app::{Referrer, Spellings};
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Path, Query};

/// Keeps a page far below the 4 MiB that clients accept for an index.
const PAGE: u32 = 500;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    media_type: &'static str,
    manifests: Vec<Entry>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    media_type: String,
    size: u64,
    digest: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path((names, subject)): Path<(Spellings, Digest)>,
    query: Query,
) -> Result<Response, Failure> {
    let repository = registry.spelling_existing(&caller, &names).await?;
    let artifact_type = query.get("artifactType").filter(|wanted| !wanted.is_empty());
    let n = query.limit("n")?.unwrap_or(PAGE).min(PAGE);
    let page = registry
        .referrers(&caller, &repository, &subject, artifact_type, query.digest("last")?.as_ref(), n)
        .await?;
    let next = page.items.last().filter(|_| page.more).map(|last| {
        let n = n.to_string();
        let mut next = vec![("n", n.as_str()), ("last", last.digest.as_str())];
        next.extend(artifact_type.map(|wanted| ("artifactType", wanted)));
        links.next(&format!("/v2/{repository}/referrers/{subject}"), &next)
    });

    let manifests = page.items.into_iter().map(Entry::from).collect();
    let mut response = Json(Index { schema_version: 2, media_type: OCI_INDEX, manifests }).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(OCI_INDEX));
    if artifact_type.is_some() {
        headers.insert(OCI_FILTERS_APPLIED, HeaderValue::from_static("artifactType"));
    }
    if let Some(next) = next {
        headers.insert(header::LINK, next);
    }
    Ok(response)
}

impl From<Referrer> for Entry {
    fn from(referrer: Referrer) -> Entry {
        let Referrer { media_type, size_bytes, digest, artifact_type, annotations } = referrer;
        Entry { media_type, size: size_bytes, digest, artifact_type, annotations }
    }
}
