//! `If-None-Match`: a client that already has the content gets 304.
//! Handlers that set an entity tag check this before they open any bytes.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use lode_model::digest::Digest;

use super::links::header_value;

pub(crate) const DOCKER_CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// The entity tag of content: its digest.
pub(crate) fn etag(digest: &Digest) -> String {
    ["\"", digest.as_str(), "\""].concat()
}

/// For content under a digest: it never changes, and only some callers may read it.
pub(crate) const IMMUTABLE: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");

/// The 304 response if the client already has this content.
pub(crate) fn not_modified(headers: &HeaderMap, digest: &Digest) -> Option<Response> {
    if !headers.contains_key(header::IF_NONE_MATCH) {
        return None;
    }
    let etag = etag(digest);
    if !matches_tag(headers, &etag) {
        return None;
    }
    let response_headers =
        [(header::ETAG, header_value(&etag)), (DOCKER_CONTENT_DIGEST, header_value(digest.as_str()))];
    Some((StatusCode::NOT_MODIFIED, response_headers).into_response())
}

/// Whether the client already has the content with this entity tag.
pub(crate) fn matches_tag(headers: &HeaderMap, etag: &str) -> bool {
    let names = |value: &HeaderValue| value.to_str().is_ok_and(|list| list_contains_tag(list, etag));
    headers.get_all(header::IF_NONE_MATCH).iter().any(names)
}

/// Whether `etag` is in the list. A weak tag matches too, because equal digests mean equal bytes. Our tags
/// contain no comma.
fn list_contains_tag(list: &str, etag: &str) -> bool {
    list.split(',').map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_in_lists() {
        for good in ["\"a\"", "*", "W/\"a\"", "\"b\", \"a\"", "\"b\",W/\"a\""] {
            assert!(list_contains_tag(good, "\"a\""), "{good}");
        }
        for bad in ["", "a", "\"b\"", "\"aa\"", "w/\"a\""] {
            assert!(!list_contains_tag(bad, "\"a\""), "{bad}");
        }
    }
}
