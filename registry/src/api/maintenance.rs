//! `POST /lode/v1/gc` and `/lode/v1/fsck`: run one now, answer when it is done.

use axum::extract::State;
use serde::Deserialize;

use crate::auth::Caller;
use crate::http::{Failure, Json};
use crate::{FsckReport, GcReport, Registry};

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

pub(crate) async fn fsck(
    State(registry): State<Registry>,
    caller: Caller,
    Json(fsck): Json<Fsck>,
) -> Result<Json<FsckReport>, Failure> {
    Ok(Json(registry.fsck(&caller, fsck.verify).await?))
}
