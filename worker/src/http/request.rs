//! The common parts of every inference request: the gateway's headers, a JSON body, and the requested model.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use futures::future::BoxFuture;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;
use lode_client::{Charge, Urgency, read_body};
use lode_model::digest::Digest;
use lode_model::json_outline::{Outline, OutlineError};
use lode_model::reference::Repository;
use lode_model::with_json_types;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::Api;
use super::serve::Peer;
use crate::error::Error;
use crate::runner::protocol::{ErrorKind, RunnerError};
use crate::scheduler::{KeepAlive, ModelRequirements, Ticket};

/// Headers in which the gateway sends the model to load and the caller's name for it.
const MODEL_HEADER: &str = "lode-model";
const MODEL_NAME_HEADER: &str = "lode-model-name";

/// Bodies above this size are parsed off the async threads.
const LARGE_BYTES: usize = 256 << 10;

/// Header for the gateway's client. Clients take turns when requests wait for a model.
const CLIENT_HEADER: &str = "lode-client";

/// How long to wait for a stopping runner to end.
const RUNNER_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs a request's work with a ticket for its model. If the runner ended before the client received a part
/// of the response, retries once with a new runner.
pub(super) async fn run_with_model<'a, T>(
    api: &Api,
    wanted: ModelRequirements,
    work: impl Fn(Ticket) -> BoxFuture<'a, Result<T, Error>>,
) -> Result<T, Error> {
    let ticket = api.scheduler.acquire(wanted.clone()).await?;
    let ended = ticket.model().wait_until_ended();
    match work(ticket).await {
        Err(Error::Runner(RunnerError { kind: ErrorKind::Stopped, .. }) | Error::RunnerGone) => {
            let _ = tokio::time::timeout(RUNNER_EXIT_TIMEOUT, ended).await;
            work(api.scheduler.acquire(wanted).await?).await
        }
        other => other,
    }
}

/// Proof that a request sent this worker's secret.
pub(super) struct Authorized;

impl FromRequestParts<Api> for Authorized {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Authorized, Error> {
        let secret = api.secret.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let shown =
            parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match (secret, shown) {
            (Some(secret), Some(shown)) if secret.matches(shown) => {
                if let Some(peer) = parts.extensions.get::<Peer>() {
                    peer.trust();
                }
                Ok(Authorized)
            }
            _ => Err(Error::Unauthorized),
        }
    }
}

/// The model that the gateway resolved, and the caller's request body.
pub(super) struct ModelRequest<T> {
    pub(super) repository: Repository,
    pub(super) digest: Digest,
    /// The name as the caller wrote it.
    pub(super) name: String,
    pub(super) client: Arc<str>,
    pub(super) urgency: Urgency,
    pub(super) body: T,
    /// Charge for the memory of the body.
    pub(super) _charge: Charge,
}

impl<T> ModelRequest<T> {
    pub(super) fn wanted(&self, num_ctx: Option<usize>, keep_alive: Option<KeepAlive>) -> ModelRequirements {
        ModelRequirements {
            repository: self.repository.clone(),
            digest: self.digest.clone(),
            name: self.name.clone(),
            client: self.client.clone(),
            urgency: self.urgency,
            num_ctx,
            sequence_length: None,
            keep_alive,
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Api> for ModelRequest<T> {
    type Rejection = Error;

    async fn from_request(request: Request, api: &Api) -> Result<ModelRequest<T>, Error> {
        let (mut parts, body) = request.into_parts();
        Authorized::from_request_parts(&mut parts, api).await?;
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let model = header(MODEL_HEADER).ok_or_else(|| Error::Invalid("model is required".into()))?;
        let (repository, digest) =
            parse_model(model).ok_or_else(|| Error::Invalid("invalid model name".into()))?;
        let name = header(MODEL_NAME_HEADER).unwrap_or(model).to_owned();
        let client = header(CLIENT_HEADER).unwrap_or_default().into();
        let urgency = Urgency::of(&parts.headers);
        let mut charge = api.bodies.budget.charge();
        let body = read_body(body, api.bodies.limit_bytes, &mut charge).await?;
        if body.is_empty() {
            return Err(Error::Invalid("missing request body".into()));
        }
        let is_large = body.len() > LARGE_BYTES;
        let read = move || {
            let parsed = parse(&body, &mut charge)?;
            Ok::<_, Error>((parsed, charge))
        };
        let (body, _charge) = match is_large {
            false => read()?,
            true => match tokio::task::spawn_blocking(read).await {
                Ok(read) => read?,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        };
        Ok(ModelRequest { repository, digest, name, client, urgency, body, _charge })
    }
}

/// `REPOSITORY@DIGEST`.
fn parse_model(text: &str) -> Option<(Repository, Digest)> {
    let (repository, digest) = text.rsplit_once('@')?;
    Some((repository.parse().ok()?, digest.parse().ok()?))
}

/// The model of a request, and the caller's name for it.
pub(super) fn model_and_name(headers: &HeaderMap) -> Option<(Digest, String)> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let model = header(MODEL_HEADER)?;
    Some((parse_model(model)?.1, header(MODEL_NAME_HEADER).unwrap_or(model).to_owned()))
}

/// Parses a body and charges the memory that it takes. If a value has the wrong type, the error names the
/// field.
fn parse<T: DeserializeOwned>(body: &[u8], charge: &mut Charge) -> Result<T, Error> {
    let invalid = |error: serde_json::Error| {
        // Tracking the path takes memory for each key, so only a failed parse is repeated with it.
        let tracked: Result<T, _> =
            serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(body));
        let message = tracked.err().map_or_else(|| error.to_string(), |error| error.to_string());
        Error::Invalid(with_json_types(&message))
    };
    let outline = Outline::read(body).map_err(|error| match error {
        OutlineError::Json(error) => invalid(error),
        error => Error::Invalid(error.to_string()),
    })?;
    charge.set(body.len().saturating_add(outline.parsed_bytes()))?;
    let parsed = serde_json::from_slice(body).map_err(invalid)?;
    charge.set(outline.parsed_bytes())?;
    Ok(parsed)
}

/// Whether the JSON value is a string.
pub(super) fn is_json_string(json: &RawValue) -> bool {
    json.get().starts_with('"')
}
