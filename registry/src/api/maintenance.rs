//! `POST /lode/v1/gc` and `/lode/v1/fsck`, which start a job; what waits for its deletion; and the removals of
//! collections, which can be undone.

use axum::extract::State;
use axum::response::Response;
use lode_model::reference::Repository;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{MAX_PAGE, jobs};
use crate::app::JobKind;
use crate::auth::{Action, Caller};
use crate::http::{Failure, Json, JsonBody, Links, Query, RequestBody, page};
use crate::{GcWaiting, Registry, RestoredContent};

#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = GcRequest)]
pub(crate) struct Gc {
    /// Whether nothing is removed, and the removals are only listed.
    dry_run: bool,
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = FsckRequest)]
pub(crate) struct Fsck {
    /// Whether every byte is read.
    verify: bool,
}

impl RequestBody for Gc {
    const ACTION: Action = Action::Administer;
}

impl RequestBody for Fsck {
    const ACTION: Action = Action::Administer;
}

impl RequestBody for Undo {
    const ACTION: Action = Action::Administer;
}

pub(crate) async fn gc(
    State(registry): State<Registry>,
    caller: Caller,
    gc: JsonBody<Gc>,
) -> Result<Response, Failure> {
    jobs::start(&registry, &caller, JobKind::Gc { dry_run: gc.dry_run }).await
}

pub(crate) async fn waiting(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<Json<GcWaiting>, Failure> {
    Ok(Json(registry.gc_waiting(&caller).await?))
}

/// The object to restore: a repository, and one of its tags or digests.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UndoRequest)]
pub(crate) struct Undo {
    repository: Repository,
    /// A tag or a digest.
    reference: String,
}

pub(crate) async fn undo(
    State(registry): State<Registry>,
    caller: Caller,
    undo: JsonBody<Undo>,
) -> Result<Json<RestoredContent>, Failure> {
    Ok(Json(registry.gc_undo(&caller, &undo.repository, &undo.reference.parse()?).await?))
}

/// Newest first; `n` limits the page, and `last` is the end of the previous page (`next`; `after` is its
/// older name).
pub(crate) async fn removals(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let repository: Option<Repository> = query.get("repository").map(str::parse).transpose()?;
    let (after, n) = (query.get("last").or(query.get("after")), query.limit("n")?.unwrap_or(MAX_PAGE));
    let found = registry.removals(&caller, repository.as_ref(), after, Some(n)).await?;
    let next = found.next.as_deref().map(|last| {
        let n = n.to_string();
        let mut parameters = vec![("n", n.as_str()), ("last", last)];
        parameters.extend(repository.as_ref().map(|repository| ("repository", repository.as_str())));
        links.next("/lode/v1/gc/removals", &parameters)
    });
    Ok(page(Json(found), next))
}

pub(crate) async fn fsck(
    State(registry): State<Registry>,
    caller: Caller,
    fsck: JsonBody<Fsck>,
) -> Result<Response, Failure> {
    jobs::start(&registry, &caller, JobKind::Fsck { verify: fsck.verify }).await
}
