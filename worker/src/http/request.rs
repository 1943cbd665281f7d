//! What every inference request has in common: the gateway's headers, a JSON body, and which model is meant.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use futures::future::BoxFuture;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::de::DeserializeOwned;

use super::Api;
use crate::error::Error;
use crate::runner::protocol::{ErrorKind, RunnerError};
use crate::scheduler::{KeepAlive, Ticket, Wanted};

/// Where the gateway says what to load, and how the caller called it.
const MODEL_HEADER: &str = "lode-model";
const MODEL_NAME_HEADER: &str = "lode-model-name";

/// A runner that is at its end gets this long to be gone.
const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// Does a request's work with the model it wants; once more with a new runner where the old one was at its end
/// and had not begun to answer.
pub(super) async fn with_model<'a, T>(
    api: &Api,
    wanted: Wanted,
    work: impl Fn(Ticket) -> BoxFuture<'a, Result<T, Error>>,
) -> Result<T, Error> {
    let ticket = api.scheduler.acquire(wanted.clone()).await?;
    let ended = ticket.model().ended();
    match work(ticket).await {
        Err(Error::Runner(RunnerError { kind: ErrorKind::Stopped, .. })) => {
            let _ = tokio::time::timeout(LAST_MOMENTS, ended).await;
            work(api.scheduler.acquire(wanted).await?).await
        }
        other => other,
    }
}

/// A request that has shown this worker's secret.
pub(super) struct Authorized;

impl FromRequestParts<Api> for Authorized {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Authorized, Error> {
        let secret = api.secret.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let shown =
            parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match (secret, shown) {
            (Some(secret), Some(shown)) if same(secret.as_bytes(), shown.as_bytes()) => Ok(Authorized),
            _ => Err(Error::Unauthorized),
        }
    }
}

/// Takes as long for a wrong text as for a right one of its length.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

/// The model that the gateway resolved, and the body the caller sent.
pub(super) struct Asked<T> {
    pub(super) repository: Repository,
    pub(super) digest: Digest,
    /// As the caller wrote it.
    pub(super) name: String,
    pub(super) body: T,
}

impl<T> Asked<T> {
    pub(super) fn wanted(&self, num_ctx: Option<usize>, keep_alive: Option<KeepAlive>) -> Wanted {
        Wanted {
            repository: self.repository.clone(),
            digest: self.digest.clone(),
            name: self.name.clone(),
            num_ctx,
            keep_alive,
        }
    }
}

impl<T: DeserializeOwned> FromRequest<Api> for Asked<T> {
    type Rejection = Error;

    async fn from_request(request: Request, api: &Api) -> Result<Asked<T>, Error> {
        let (mut parts, body) = request.into_parts();
        Authorized::from_request_parts(&mut parts, api).await?;
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let model = header(MODEL_HEADER).ok_or_else(|| Error::Invalid("model is required".into()))?;
        let (repository, digest) =
            parse_model(model).ok_or_else(|| Error::Invalid("invalid model name".into()))?;
        let name = header(MODEL_NAME_HEADER).unwrap_or(model).to_owned();
        let body = Bytes::from_request(Request::from_parts(parts, body), &())
            .await
            .map_err(|error: BytesRejection| Error::Invalid(error.body_text()))?;
        if body.is_empty() {
            return Err(Error::Invalid("missing request body".into()));
        }
        Ok(Asked { repository, digest, name, body: parse(&body)? })
    }
}

/// `REPOSITORY@DIGEST`.
fn parse_model(text: &str) -> Option<(Repository, Digest)> {
    let (repository, digest) = text.rsplit_once('@')?;
    Some((repository.parse().ok()?, digest.parse().ok()?))
}

/// The model of a request, and how its caller called it.
pub(super) fn model_and_name(headers: &HeaderMap) -> Option<(Digest, String)> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let model = header(MODEL_HEADER)?;
    Some((parse_model(model)?.1, header(MODEL_NAME_HEADER).unwrap_or(model).to_owned()))
}

/// What a body says; where it says something else than is expected, the error names the field.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut json)
        .map_err(|error: serde_path_to_error::Error<serde_json::Error>| Error::Invalid(error.to_string()))?;
    json.end().map_err(|error| Error::Invalid(error.to_string()))?;
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn secrets_are_compared_whole() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abc", b"abd") && !same(b"abc", b"ab") && !same(b"", b"a"));
    }
}
