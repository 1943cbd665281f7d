//! `POST /lode/v1/gc` and `/lode/v1/fsck`: run one now, answer when it is done. What the collection removed, and its undo.

use axum::extract::State;
use lode_model::reference::Repository;
use serde::Deserialize;

use crate::auth::Caller;
use crate::http::{Failure, Json, Query};
use crate::{FsckReport, GcReport, Registry, RemovalPage, Restored};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Gc {
    dry_run: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fsck {
    verify: bool,
}

pub(crate) async fn gc(
    State(registry): State<Registry>,
    caller: Caller,
    Json(gc): Json<Gc>,
) -> Result<Json<GcReport>, Failure> {
    Ok(Json(registry.gc_run(&caller, gc.dry_run).await?))
}

/// What to bring back: a repository, and one of its tags or digests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Undo {
    repository: Repository,
    reference: String,
}

pub(crate) async fn undo(
    State(registry): State<Registry>,
    caller: Caller,
    Json(undo): Json<Undo>,
) -> Result<Json<Restored>, Failure> {
    Ok(Json(registry.gc_undo(&caller, &undo.repository, &undo.reference.parse()?).await?))
}

/// Newest first; `n` limits the page, and `after` is the `next` of the one before.
pub(crate) async fn removals(
    State(registry): State<Registry>,
    caller: Caller,
    query: Query,
) -> Result<Json<RemovalPage>, Failure> {
    let repository: Option<Repository> = query.get("repository").map(str::parse).transpose()?;
    let page = registry.removals(&caller, repository.as_ref(), query.get("after"), query.limit("n")?).await?;
    Ok(Json(page))
}

pub(crate) async fn fsck(
    State(registry): State<Registry>,
    caller: Caller,
    Json(fsck): Json<Fsck>,
) -> Result<Json<FsckReport>, Failure> {
    Ok(Json(registry.fsck(&caller, fsck.verify).await?))
}
