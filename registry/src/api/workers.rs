//! `/lode/v1/workers`: workers register, send heartbeats and leave; callers list them, and remove them.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::{
    Heartbeat, HeartbeatReply, JoinProof, Registration, WORKER_CREDENTIAL_PREFIX, Worker, WorkerAnnouncement,
};
use crate::auth::{Action, Caller};
use crate::http::{Failure, Json, JsonBody, Links, Path, Query, RequestBody, page};

/// How many models a worker may be reserved for: each of its heartbeats resolves their names.
const MAX_RESERVED_MODELS: usize = 64;

#[derive(Serialize, ToSchema)]
pub(crate) struct WorkerList {
    workers: Vec<Worker>,
}

impl RequestBody for WorkerAnnouncement {
    const ACTION: Action = Action::Join;
}

impl RequestBody for Heartbeat {
    const ACTION: Action = Action::Join;
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let after = query.get("last").map(position).transpose()?;
    let mut workers = registry.worker_list(&caller).await?;
    workers.sort_by_key(|worker| (worker.registered_at, worker.id));
    workers.retain(|worker| after.is_none_or(|after| (worker.registered_at, worker.id) > after));
    let more = workers.len() > n as usize;
    workers.truncate(n as usize);
    let next = workers.last().filter(|_| more).map(|worker| {
        let last = format!("{}.{}", worker.registered_at, worker.id);
        links.next("/lode/v1/workers", &[("n", &n.to_string()), ("last", &last)])
    });
    Ok(page(Json(WorkerList { workers }), next))
}

/// A worker's position in the listing, oldest registration first: `REGISTERED_AT.ID`.
fn position(text: &str) -> Result<(i64, Uuid), Failure> {
    let parsed = text.split_once('.').and_then(|(at, id)| Some((at.parse().ok()?, id.parse().ok()?)));
    let expected = "the `last` parameter of a `Link` to the next page";
    parsed.ok_or_else(|| Failure::Query { name: "last", value: text.to_owned(), expected })
}

pub(crate) async fn register(
    State(registry): State<Registry>,
    caller: Caller,
    shown: JoinEvidence,
    body: JsonBody<WorkerAnnouncement>,
) -> Result<(StatusCode, Json<Registration>), Failure> {
    let (announcement, _charge) = body.into_parts();
    if !matches!(announcement.advertise.scheme(), "http" | "https") {
        return Err(Failure::Unsupported("advertise must be an http or https URL"));
    }
    if announcement.reserved_for.len() > MAX_RESERVED_MODELS {
        return Err(Failure::Unsupported("reserved_for must have at most 64 models"));
    }
    if announcement.reserved_for.iter().any(|name| name.host.is_some()) {
        return Err(Failure::Unsupported("reserved_for must name models without a host"));
    }
    let registration = registry.worker_register(&caller, shown.proof(), announcement).await?;
    Ok((StatusCode::CREATED, Json(registration)))
}

pub(crate) async fn heartbeat(
    State(registry): State<Registry>,
    caller: Caller,
    BearerToken(credential): BearerToken,
    Path(id): Path<Uuid>,
    heartbeat: JsonBody<Heartbeat>,
) -> Result<Response, Failure> {
    let credential = credential.unwrap_or_default();
    match registry.worker_heartbeat(&caller, id, &credential, &heartbeat).await? {
        Some(reply) if reply == HeartbeatReply::default() => Ok(StatusCode::NO_CONTENT.into_response()),
        Some(reply) => Ok(Json(reply).into_response()),
        None => Err(Failure::WorkerUnknown),
    }
}

/// Stops sending new requests to a worker.
pub(crate) async fn drain(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Failure> {
    set_draining(&registry, &caller, id, true).await
}

/// Resumes sending requests to it.
pub(crate) async fn resume(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Failure> {
    set_draining(&registry, &caller, id, false).await
}

async fn set_draining(
    registry: &Registry,
    caller: &Caller,
    id: Uuid,
    draining: bool,
) -> Result<StatusCode, Failure> {
    let known = registry.worker_drain(caller, id, draining).await?;
    if known { Ok(StatusCode::NO_CONTENT) } else { Err(Failure::WorkerUnknown) }
}

/// A worker leaves with its own credential; an administrator removes any.
pub(crate) async fn leave(
    State(registry): State<Registry>,
    caller: Caller,
    BearerToken(token): BearerToken,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Failure> {
    let known = match token.filter(|token| token.starts_with(WORKER_CREDENTIAL_PREFIX)) {
        Some(credential) => registry.worker_leave(&caller, id, &credential).await?,
        None => registry.worker_remove(&caller, id).await?,
    };
    if known { Ok(StatusCode::NO_CONTENT) } else { Err(Failure::WorkerUnknown) }
}

/// The token of an `Authorization: Bearer` header, if there is one.
pub(crate) struct BearerToken(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for BearerToken {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        Ok(BearerToken(authorization.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned)))
    }
}

/// A request's evidence for the right to join: the bearer token, and whether it comes from this machine.
pub(crate) struct JoinEvidence {
    token: Option<String>,
    is_local: bool,
}

impl JoinEvidence {
    fn proof(&self) -> JoinProof<'_> {
        JoinProof { token: self.token.as_deref(), is_local: self.is_local }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for JoinEvidence {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let BearerToken(token) = BearerToken::from_request_parts(parts, state).await?;
        // A proxy on this machine may pass on requests from anywhere.
        let is_direct =
            !parts.headers.contains_key("x-forwarded-for") && !parts.headers.contains_key("forwarded");
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let is_local = is_direct && peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback());
        Ok(JoinEvidence { token, is_local })
    }
}
