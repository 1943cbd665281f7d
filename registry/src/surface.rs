//! The APIs of the server, distinguished by path, and the error format of each.

use axum::response::Response;
use http::{HeaderName, HeaderValue, Request, header};

use crate::http::error::FailureExtension;
use crate::http::pages::prefers_html;
use crate::http::session_cookie::is_page;
use crate::{Error, api, hf, hub, oci};

/// Seconds after which a client may retry.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("5");
/// Tells clients not to repeat a request after a server error. OpenAI's and Anthropic's clients read it, and ours does.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The API that a path belongs to, which determines the format of its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    /// `/v2`, and `/token`.
    Distribution,
    /// `/v1/messages`.
    Anthropic,
    /// The rest of `/v1`, and `/v2/rerank`.
    OpenAi,
    /// `/lode/v1`.
    Lode,
    /// `/api`, ollama's.
    Ollama,
    /// `/hf`, Hugging Face's.
    Hub,
    /// HTML pages, and every other path if a browser requests it.
    Page,
    /// Everything else.
    Fallback,
}

impl Surface {
    pub(crate) fn of<B>(request: &Request<B>) -> Surface {
        match Surface::of_path(request.uri().path()) {
            Surface::Fallback if prefers_html(request.headers()) => Surface::Page,
            surface => surface,
        }
    }

    fn of_path(path: &str) -> Surface {
        if path == "/v2/rerank" {
            Surface::OpenAi
        } else if path == "/v2" || path.starts_with("/v2/") || path == "/token" {
            Surface::Distribution
        } else if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Surface::Anthropic
        } else if path.starts_with("/v1/") {
            Surface::OpenAi
        } else if path == "/lode/v1" || path.starts_with("/lode/v1/") {
            Surface::Lode
        } else if path.starts_with("/api/") {
            Surface::Ollama
        } else if path.starts_with("/hf/") {
            Surface::Hub
        } else if is_page(path) && path != "/" {
            Surface::Page
        } else {
            Surface::Fallback
        }
    }
}

/// Formats a failed response for an API. `id` is the request's id.
pub(crate) fn format_failure(surface: Surface, id: &str, response: Response) -> Response {
    let Some(failed) = response.extensions().get::<FailureExtension>().cloned() else { return response };
    let mut worded = match surface {
        Surface::Distribution => oci::error::respond(&failed.0),
        Surface::Anthropic => api::anthropic::error::respond(&failed.0, id),
        Surface::OpenAi => api::openai::error::respond(&failed.0),
        Surface::Lode => api::error::problem(&failed.0, id),
        Surface::Hub => hf::error::respond(&failed.0),
        Surface::Page => hub::failure_page(&failed.0, &response),
        Surface::Ollama | Surface::Fallback => api::error::respond(&failed.0),
    };
    if let Some(Error::Throttled { seconds } | Error::TooManyRequests { seconds }) = failed.0.error() {
        worded.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(*seconds));
    } else if failed.0.is_retryable() {
        worded.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    } else if worded.status().is_server_error() && failed.0.is_permanent() {
        worded.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    // The router has set the methods that a route supports.
    if let Some(methods) = response.headers().get(header::ALLOW) {
        worded.headers_mut().insert(header::ALLOW, methods.clone());
    }
    // Keep the extensions: the log needs the failure.
    *worded.extensions_mut() = response.into_parts().0.extensions;
    worded
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::response::IntoResponse;
    use http::StatusCode;

    use super::*;
    use crate::http::Failure;

    #[test]
    fn unavailable_backends_return_503_with_retry_after() {
        let error =
            || Error::Unavailable { what: "the database".to_owned(), source: "connection refused".into() };
        assert_eq!(Failure::Registry(error()).message(), "the server is temporarily unavailable; try again");
        let away = || Error::UpstreamUnavailable(Arc::new(std::io::Error::other("connection refused")));
        assert!(Failure::Registry(away()).message().contains("mirrored"));
        for path in ["/v2/r/manifests/t", "/api/tags", "/v1/models", "/v1/messages", "/lode/v1/models"] {
            for failure in [error(), away()].map(Failure::Registry) {
                let response = format_failure(Surface::of_path(path), "id", failure.into_response());
                assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
                assert_eq!(response.headers()[header::RETRY_AFTER], "5", "{path}");
                assert!(!response.headers().contains_key(SHOULD_RETRY), "{path}");
            }
            let refused = Error::UpstreamInvalid(Arc::new(std::io::Error::other("wrong password")));
            for failure in [refused, Error::SetupPending].map(Failure::Registry) {
                let response = format_failure(Surface::of_path(path), "id", failure.into_response());
                assert_eq!(response.headers()[SHOULD_RETRY], "false", "{path}");
                assert!(!response.headers().contains_key(header::RETRY_AFTER), "{path}");
            }
        }
    }
}
