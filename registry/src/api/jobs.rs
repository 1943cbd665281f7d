//! `/lode/v1/jobs`: shows and cancels jobs. `POST /lode/v1/gc`, `/lode/v1/fsck` and
//! `/lode/v1/models` start them.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::{FindingKind, Job, JobKind};
use crate::auth::Caller;
use crate::http::links::header_value;
use crate::http::{Failure, Json, Links, Path, Query, page};

/// The longest time that a request waits for a job to finish.
const MAX_WAIT_S: u64 = 60;

#[derive(Serialize, ToSchema)]
pub(crate) struct JobList {
    jobs: Vec<Job>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = FindingList)]
pub(crate) struct Findings {
    findings: Vec<Value>,
}

/// Starts a job.
pub(super) async fn start(registry: &Registry, caller: &Caller, kind: JobKind) -> Result<Response, Failure> {
    Ok(accepted(registry.job_start(caller, kind).await?))
}

/// The response to the start of a job: 202, the job, and its URL.
pub(super) fn accepted(job: Job) -> Response {
    let location = header_value(&format!("/lode/v1/jobs/{}", job.id));
    (StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(job)).into_response()
}

/// Newest first.
pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let after = query.id("last")?;
    let found = registry.job_list(&caller, after, n).await?;
    let last = found.items.last().filter(|_| found.more).map(|job| job.id.clone());
    let next = last.map(|last| links.next("/lode/v1/jobs", &[("n", &n.to_string()), ("last", &last)]));
    Ok(page(Json(JobList { jobs: found.items }), next))
}

/// `wait=SECONDS`: responds once the job has finished, or after that time.
pub(crate) async fn show(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
    query: Query,
) -> Result<Json<Job>, Failure> {
    let wait = Duration::from_secs(query.number("wait")?.unwrap_or_default().min(MAX_WAIT_S));
    registry.job_show(&caller, id, wait).await?.map(Json).ok_or_else(|| unknown(id))
}

pub(crate) async fn cancel(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
) -> Result<(StatusCode, Json<Job>), Failure> {
    let job = registry.job_cancel(&caller, id).await?.ok_or_else(|| unknown(id))?;
    let status = if job.finished_at.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(job)))
}

pub(crate) async fn findings(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path(id): Path<Uuid>,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let name = query.get("kind").unwrap_or_default();
    let expected = "`damage`, `orphan`, `upload` or `removal`";
    let kind = FindingKind::ALL.into_iter().find(|kind| kind.name() == name);
    let kind = kind.ok_or_else(|| Failure::Query { name: "kind", value: name.to_owned(), expected })?;
    let found = registry.job_findings(&caller, id, kind, query.number("last")?, n).await?;
    let found = found.ok_or_else(|| unknown(id))?;
    let last = found.items.last().filter(|_| found.more).map(|(position, _)| position.to_string());
    let next = last.map(|last| {
        let path = format!("/lode/v1/jobs/{id}/findings");
        links.next(&path, &[("kind", name), ("n", &n.to_string()), ("last", &last)])
    });
    let findings = found.items.into_iter().map(|(_, detail)| detail).collect();
    Ok(page(Json(Findings { findings }), next))
}

fn unknown(id: Uuid) -> Failure {
    Failure::Id { id: id.to_string() }
}
