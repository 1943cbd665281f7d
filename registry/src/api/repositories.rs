//! `/lode/v1/repositories`: every repository, and the tags and manifests in it.

use axum::extract::State;
use axum::response::Response;
use lode_model::reference::Repository;
use serde::Serialize;

use crate::Registry;
use crate::app::{ManifestSummary, RepositorySummary, TagSummary};
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Path, Query, page};

#[derive(Serialize)]
struct RepositoryList {
    repositories: Vec<RepositorySummary>,
}

#[derive(Serialize)]
struct TagList {
    repository: Repository,
    tags: Vec<TagSummary>,
}

#[derive(Serialize)]
struct ManifestList {
    repository: Repository,
    manifests: Vec<ManifestSummary>,
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

/// The parameters of the next page, whose size is that of this one.
fn next_page<'a>(query: &'a Query, last: &'a str) -> Vec<(&'a str, &'a str)> {
    query.get("n").map(|n| ("n", n)).into_iter().chain([("last", last)]).collect()
}
