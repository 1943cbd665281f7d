//! Failures under `/hf`: the status, `{"error":"text"}`, and the headers by which Hugging Face's clients tell them
//! apart.

use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, header};
use serde_json::json;

use crate::Error;
use crate::app::{CommitError, FilesError};
use crate::http::links::header_value;
use crate::http::{Failure, Json};

pub(crate) const REPO_COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
pub(crate) const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");
/// The message by which the clients recognise a wrong token.
const WRONG_TOKEN: HeaderValue = HeaderValue::from_static("Invalid credentials in Authorization header");

pub(crate) fn respond(failure: &Failure) -> Response {
    let message = failure.message();
    let mut response = (failure.status(), Json(json!({ "error": message }))).into_response();
    let headers = response.headers_mut();
    if let Some(code) = code(failure) {
        headers.insert(ERROR_CODE, HeaderValue::from_static(code));
    }
    if let Failure::Files(FilesError::EntryUnknown { commit, .. }) = failure {
        // With it, the clients remember that there is no such file.
        headers.insert(REPO_COMMIT, header_value(commit));
    }
    let printable: String = message.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
    match failure.error() {
        Some(Error::CredentialsInvalid { is_token: true }) => {
            headers.insert(ERROR_MESSAGE, WRONG_TOKEN);
        }
        error => {
            if let Ok(value) = HeaderValue::from_str(&printable) {
                headers.insert(ERROR_MESSAGE, value);
            }
            if let Some(Error::RangeUnsatisfiable { size_bytes }) = error {
                headers.insert(header::CONTENT_RANGE, header_value(&format!("bytes */{size_bytes}")));
            }
        }
    }
    response
}

/// The clients raise an exception of its own for each code.
fn code(failure: &Failure) -> Option<&'static str> {
    match failure {
        // Reading or changing what is missing or hidden.
        Failure::Files(FilesError::Registry(Error::Unauthorized))
        | Failure::Commit(CommitError::Registry(Error::Unauthorized)) => Some("RepoNotFound"),
        Failure::Files(FilesError::RevisionUnknown { .. } | FilesError::Index { .. })
        | Failure::Commit(CommitError::BranchUnknown { .. }) => Some("RevisionNotFound"),
        Failure::Files(FilesError::EntryUnknown { .. })
        | Failure::Commit(CommitError::EntryUnknown { .. }) => Some("EntryNotFound"),
        _ => matches!(failure.error(), Some(Error::NameUnknown { .. } | Error::PushHidden { .. }))
            .then_some("RepoNotFound"),
    }
}

/// The failure of requests about them.
pub(crate) fn no_pull_requests() -> Failure {
    let what = "Discussions are disabled for this repo: this server has no pull requests; commit to a branch";
    Failure::Commit(CommitError::Unsupported { what })
}
