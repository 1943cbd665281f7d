//! `/lode/v1/workers`: join, report, leave, and who is there.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, FromRequestParts, State};
use http::request::Parts;
use http::{StatusCode, header};
use serde::Serialize;
use uuid::Uuid;

use crate::Registry;
use crate::app::{Heartbeat, JoinProof, Registration, Worker, WorkerAnnouncement};
use crate::auth::Caller;
use crate::http::{Failure, Json, Path};

#[derive(Serialize)]
pub(crate) struct WorkerList {
    workers: Vec<Worker>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<Json<WorkerList>, Failure> {
    Ok(Json(WorkerList { workers: registry.worker_list(&caller).await? }))
}

pub(crate) async fn register(
    State(registry): State<Registry>,
    caller: Caller,
    shown: Shown,
    Json(announcement): Json<WorkerAnnouncement>,
) -> Result<(StatusCode, Json<Registration>), Failure> {
    if !matches!(announcement.advertise.scheme(), "http" | "https") {
        return Err(Failure::Unsupported("advertise is an http or https address"));
    }
    let registration = registry.worker_register(&caller, shown.proof(), announcement).await?;
    Ok((StatusCode::CREATED, Json(registration)))
}

pub(crate) async fn heartbeat(
    State(registry): State<Registry>,
    caller: Caller,
    shown: Shown,
    Path(id): Path<Uuid>,
    Json(heartbeat): Json<Heartbeat>,
) -> Result<StatusCode, Failure> {
    let known = registry.worker_heartbeat(&caller, shown.proof(), id, &heartbeat).await?;
    if known { Ok(StatusCode::NO_CONTENT) } else { Err(Failure::WorkerUnknown) }
}

pub(crate) async fn leave(
    State(registry): State<Registry>,
    caller: Caller,
    shown: Shown,
    Path(id): Path<Uuid>,
) -> Result<StatusCode, Failure> {
    let known = registry.worker_leave(&caller, shown.proof(), id).await?;
    if known { Ok(StatusCode::NO_CONTENT) } else { Err(Failure::WorkerUnknown) }
}

/// What a request shows of the right to join: the bearer token, and whether it comes from this machine.
pub(crate) struct Shown {
    token: Option<String>,
    is_local: bool,
}

impl Shown {
    fn proof(&self) -> JoinProof<'_> {
        JoinProof { token: self.token.as_deref(), is_local: self.is_local }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Shown {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = authorization.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
        // What a proxy on this machine passes on may come from anywhere.
        let is_direct =
            !parts.headers.contains_key("x-forwarded-for") && !parts.headers.contains_key("forwarded");
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let is_local = is_direct && peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback());
        Ok(Shown { token, is_local })
    }
}
