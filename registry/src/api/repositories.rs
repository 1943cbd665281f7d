//! `/lode/v1/repositories`: every repository, and the tags and manifests in it.

use axum::extract::State;
use axum::response::Response;
use lode_model::reference::{Repository, Tag};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Registry;
use crate::app::{ManifestSummary, PullHistory, RepositorySummary, TagMove, TagMovedBack, TagSummary};
use crate::auth::{Action, Caller};
use crate::http::{Failure, Json, JsonBody, Links, Path, Query, RequestBody, page};
use crate::time::{DAY_MS, date};

#[derive(Serialize, ToSchema)]
pub(super) struct RepositoryList {
    repositories: Vec<RepositorySummary>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct TagList {
    repository: Repository,
    tags: Vec<TagSummary>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct ManifestList {
    repository: Repository,
    manifests: Vec<ManifestSummary>,
}

#[derive(Serialize, ToSchema)]
pub(super) struct TagHistory {
    repository: Repository,
    moves: Vec<TagMove>,
}

/// How often a repository was pulled. A caller counts once an hour.
#[derive(Serialize, ToSchema)]
pub(crate) struct Pulls {
    repository: Repository,
    last_30_days: u64,
    all_time: u64,
    /// Each of the last 30 days, the oldest first.
    days: Vec<PullsOfDay>,
}

#[derive(Serialize, ToSchema)]
struct PullsOfDay {
    /// In UTC.
    #[schema(format = Date)]
    date: String,
    pulls: u64,
}

/// A move of a tag to undo: the last one, or that at a position.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MoveBackRequest)]
pub(crate) struct MoveBack {
    tag: Tag,
    /// Of the move in the history; by default the last one.
    position: Option<i64>,
}

impl RequestBody for MoveBack {
    const ACTION: Action = Action::Push;
}

/// The new name of a repository.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MoveRepositoryRequest)]
pub(crate) struct MoveTo {
    /// A name that has no content.
    to: Repository,
}

impl RequestBody for MoveTo {
    const ACTION: Action = Action::Own;
}

#[derive(Serialize, ToSchema)]
pub(crate) struct MovedRepository {
    repository: Repository,
    previous: Repository,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let prefix: Option<Repository> = query.get("prefix").map(str::parse).transpose()?;
    let found =
        registry.repository_summaries(&caller, prefix.as_ref(), query.limit("n")?, query.get("last")).await?;
    let next = found.items.last().filter(|_| found.more).map(|last| {
        let mut parameters = next_page(&query, last.repository.as_str());
        parameters.extend(prefix.as_ref().map(|prefix| ("prefix", prefix.as_str())));
        links.next("/lode/v1/repositories", &parameters)
    });
    Ok(page(Json(RepositoryList { repositories: found.items }), next))
}

pub(crate) async fn tags(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path(repository): Path<Repository>,
    query: Query,
) -> Result<Response, Failure> {
    let found = registry.tag_summaries(&caller, &repository, query.limit("n")?, query.get("last")).await?;
    let next = found.items.last().filter(|_| found.more).map(|last| {
        let path = format!("/lode/v1/repositories/{repository}/tags");
        links.next(&path, &next_page(&query, last.tag.as_str()))
    });
    Ok(page(Json(TagList { repository, tags: found.items }), next))
}

pub(crate) async fn manifests(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path(repository): Path<Repository>,
    query: Query,
) -> Result<Response, Failure> {
    let last = query.digest("last")?;
    let found = registry.manifest_summaries(&caller, &repository, query.limit("n")?, last.as_ref()).await?;
    let next = found.items.last().filter(|_| found.more).map(|last| {
        let path = format!("/lode/v1/repositories/{repository}/manifests");
        links.next(&path, &next_page(&query, last.content.digest.as_str()))
    });
    Ok(page(Json(ManifestList { repository, manifests: found.items }), next))
}

pub(crate) async fn tag_history(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    Path(repository): Path<Repository>,
    query: Query,
) -> Result<Response, Failure> {
    let tag: Option<Tag> = query.get("tag").map(str::parse).transpose()?;
    let before = query.number("last")?.map(|position| i64::try_from(position).unwrap_or(i64::MAX));
    let found = registry.tag_history(&caller, &repository, tag.as_ref(), query.limit("n")?, before).await?;
    let next = found.items.last().filter(|_| found.more).map(|last| {
        let path = format!("/lode/v1/repositories/{repository}/history");
        let last = last.position.to_string();
        let mut parameters = next_page(&query, &last);
        parameters.extend(tag.as_ref().map(|tag| ("tag", tag.as_str())));
        links.next(&path, &parameters)
    });
    Ok(page(Json(TagHistory { repository, moves: found.items }), next))
}

pub(crate) async fn pulls(
    State(registry): State<Registry>,
    caller: Caller,
    Path(repository): Path<Repository>,
) -> Result<Json<Pulls>, Failure> {
    let PullHistory { totals, days, today } = registry.pull_history(&caller, &repository).await?;
    let first = today + 1 - days.len() as i64;
    let days = (first..).zip(days).map(|(day, pulls)| PullsOfDay { date: date(day * DAY_MS), pulls });
    Ok(Json(Pulls {
        repository,
        last_30_days: totals.recent,
        all_time: totals.all_time,
        days: days.collect(),
    }))
}

pub(crate) async fn move_tag_back(
    State(registry): State<Registry>,
    caller: Caller,
    Path(repository): Path<Repository>,
    body: JsonBody<MoveBack>,
) -> Result<Json<TagMovedBack>, Failure> {
    Ok(Json(registry.tag_move_back(&caller, &repository, &body.tag, body.position).await?))
}

pub(crate) async fn move_to(
    State(registry): State<Registry>,
    caller: Caller,
    Path(previous): Path<Repository>,
    body: JsonBody<MoveTo>,
) -> Result<Json<MovedRepository>, Failure> {
    let repository = body.to.clone();
    registry.repository_move(&caller, &previous, &repository).await?;
    Ok(Json(MovedRepository { repository, previous }))
}

/// The parameters of the next page, whose size is that of this one.
fn next_page<'a>(query: &'a Query, last: &'a str) -> Vec<(&'a str, &'a str)> {
    query.get("n").map(|n| ("n", n)).into_iter().chain([("last", last)]).collect()
}
