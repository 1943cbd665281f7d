//! Cross-origin requests (CORS): which pages of other origins may use the APIs, and the headers that tell browsers so.
//! Credentials are those that a page sends itself: a browser's cookies are never allowed, and never read.

use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::host::host;
use crate::Config;
use crate::config::is_loopback_origin;

/// The paths of the APIs. Pages for people, the sign-in and the token service are not for other origins.
const PATHS: [&str; 5] = ["/v1/", "/api/", "/v2/", "/hf/", "/lode/v1/"];
/// How long a browser may remember the response to a preflight request.
const MAX_AGE: Duration = Duration::from_secs(600);
const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
/// The headers of responses that a page may read, besides those that every page may.
const EXPOSED: [HeaderName; 16] = [
    header::ACCEPT_RANGES,
    header::CONTENT_RANGE,
    header::ETAG,
    header::LINK,
    header::LOCATION,
    header::RANGE,
    header::RETRY_AFTER,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("docker-content-digest"),
    HeaderName::from_static("docker-upload-uuid"),
    HeaderName::from_static("x-error-code"),
    HeaderName::from_static("x-error-message"),
    HeaderName::from_static("x-linked-etag"),
    HeaderName::from_static("x-linked-size"),
    HeaderName::from_static("x-repo-commit"),
    HeaderName::from_static("x-should-retry"),
];

/// The origin of the page that sends a request to an API, if it is another origin than this server's.
pub(crate) fn foreign_origin(parts: &Parts) -> Option<&str> {
    let path = parts.uri.path();
    if !PATHS.iter().any(|prefix| path.starts_with(prefix)) {
        return None;
    }
    let origin = parts.headers.get(header::ORIGIN)?.to_str().ok()?;
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    let is_own =
        authority.is_some_and(|authority| host(parts).is_some_and(|own| own.eq_ignore_ascii_case(authority)));
    (!is_own).then_some(origin)
}

/// Whether pages of this origin may use the APIs. Without a setting, a server that only this machine reaches allows
/// pages of this machine, as ollama does.
pub(crate) fn is_allowed(config: &Config, origin: &str) -> bool {
    match config.allow_origin.as_slice() {
        [] => config.is_on_loopback() && is_loopback_origin(origin),
        rules => rules.iter().any(|rule| rule.matches(origin)),
    }
}

/// Responds to preflight requests of an allowed origin, and adds the headers to other responses.
pub(crate) fn layer(origin: HeaderValue) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::exact(origin))
        .allow_methods(METHODS)
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED)
        .max_age(MAX_AGE)
        // The operator has allowed this origin, also for a server in a private network.
        .allow_private_network(true)
}
